#!/usr/bin/env bash
# Compares hf_convert with transformers (see hf_convert.py). Installs the same packages as run.sh, once.
#
#   tests/interop/hf_convert.sh [FOLDER_OF_EXECUTABLES]   default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

started=$SECONDS
compare 900 hf_convert.py "$bin"
echo "converted in $((SECONDS - started)) s"
