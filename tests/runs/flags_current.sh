#!/usr/bin/env bash
# Checks that docs/flags.md matches the programs' --help. Compares words, because versions of cxxopts break lines differently.
set -euo pipefail
docs=$(dirname "${BASH_SOURCE[0]}")/../../docs
words() { tr -s ' \n' '\n'; }
diff <(words <"$docs/flags.md") <("$docs/flags.sh" "$1" | words) || { echo "FAIL: run docs/flags.sh >docs/flags.md" >&2; exit 1; }
echo "ok: docs/flags.md has $(grep -c '^ *--' "$docs/flags.md") flags, and they are the programs'"
