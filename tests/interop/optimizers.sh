#!/usr/bin/env bash
# SGD with momentum, Lion and Muon: a run of ours goes on in real DeepSpeed, and that one goes on here (see optimizers.py). A step
# of our Muon is torch.optim.Muon's. Installs the same packages as run.sh, once.
#
#   tests/interop/optimizers.sh [FOLDER_OF_EXECUTABLES]   default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cp "$repository"/tests/fixtures/data/corpus_text_document.{bin,idx} .
compare 600 optimizers.py "$bin"
