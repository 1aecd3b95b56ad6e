#!/usr/bin/env bash
# Converts checkpoints of real DeepSpeed's AutoTP, compares with its own converter, and resumes it from ours (see autotp.py).
# Installs the same packages as run.sh, once.
#
#   tests/interop/autotp.sh [FOLDER_OF_EXECUTABLES]       default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare 900 autotp.py "$bin"
