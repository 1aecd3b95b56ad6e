#!/usr/bin/env bash
# Compares hf_convert with transformers (see hf_convert.py). Installs the same packages as run.sh, once.
#
#   tests/interop/hf_convert.sh [FOLDER_OF_EXECUTABLES [NAME]]   default: build/release/bin, all models
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare 900 hf_convert.py "$bin" "${@:2}"
