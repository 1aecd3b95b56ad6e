#!/usr/bin/env bash
# Checkpoints between real DeepSpeed and FSDP2 of torch.distributed.checkpoint (see dialects.py). Installs the same packages as
# run.sh, once.
#
#   tests/interop/dialects.sh [FOLDER_OF_EXECUTABLES]     default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cp "$repository"/tests/fixtures/data/corpus_text_document.{bin,idx} .
compare 600 dialects.py "$bin"
