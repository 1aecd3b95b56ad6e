#!/usr/bin/env bash
# Resumes real DeepSpeed, Trainer and accelerate from what ds_reshard writes (see reshard.py). Installs the same packages as
# run.sh, once.
#
#   tests/interop/reshard.sh [FOLDER_OF_EXECUTABLES]      default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

started=$SECONDS
compare 900 reshard.py "$bin"
echo "resharded in $((SECONDS - started)) s"
