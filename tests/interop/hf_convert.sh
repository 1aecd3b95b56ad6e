#!/usr/bin/env bash
# hf_convert against transformers: hf_convert.py says what is compared. Installs what run.sh does, once.
#
#   tests/interop/hf_convert.sh [FOLDER_OF_EXECUTABLES]   default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

started=$SECONDS
compare 900 hf_convert.py "$bin"
echo "converted in $((SECONDS - started)) s"
