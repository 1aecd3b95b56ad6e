#!/usr/bin/env bash
# Checks that every test named in docs/api.md exists: Suite.Case of GoogleTest, a script of tests/runs or tests/torture, or a
# path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

missing=0
# The last column of the tables: `Name`, `Name`
named=$(awk -F'|' '/^\|/ && NF > 3 {print $(NF - 1)}' docs/api.md | grep -o '`[^`]*`' | tr -d '`' | sort -u)
for name in $named; do
  if [[ $name == */* ]]; then
    [[ -e $name ]] && continue
  elif [[ $name == *.* ]]; then
    grep -rqE "^(RANKS_)?TEST(_F|_P)?\(${name%.*}, ${name#*.}\)" tests && continue
  else
    grep -q "add_run_test($name)" tests/*/CMakeLists.txt && continue
  fi
  echo "docs/api.md names the test $name, which does not exist"
  missing=1
done
[[ $(wc -w <<<"$named") -ge 20 ]] || { echo "found only these tests in docs/api.md: $named"; exit 1; }
((missing == 0)) && echo "ok: $(wc -w <<<"$named") tests exist"
