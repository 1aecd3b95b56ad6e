#!/usr/bin/env bash
# Token files and the order of samples against megatron-core: data.py says what is compared. Installs what run.sh does, once.
#
#   tests/interop/data.sh [FOLDER_OF_EXECUTABLES]         default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

started=$SECONDS
compare 300 data.py "$bin"
echo "compared data in $((SECONDS - started)) s"
