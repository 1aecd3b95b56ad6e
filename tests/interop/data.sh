#!/usr/bin/env bash
# Compares token files and the order of samples with megatron-core (see data.py). Installs the same packages as run.sh, once.
#
#   tests/interop/data.sh [FOLDER_OF_EXECUTABLES]         default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare 300 data.py "$bin"
