#!/usr/bin/env bash
# Compares tokenizers with the tokenizers package (see hf_tokenizers.py), and its speed on one core with ours. Installs the same
# packages as run.sh, once.
#
#   tests/interop/tokenizers.sh [FOLDER_OF_EXECUTABLES [LAYOUT...]]   default: build/release/bin, all layouts
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

started=$SECONDS
with_packages 1800 "$venv/bin/python" "$repository/tests/interop/hf_tokenizers.py" compare "$PWD" "$bin/tokenize_lines" "${@:2}"
[[ $# -gt 1 ]] || with_packages 600 "$venv/bin/python" "$repository/tests/interop/hf_tokenizers.py" packages "$PWD" "$bin/tokenize_lines"
echo "compared tokenizers in $((SECONDS - started)) s"
