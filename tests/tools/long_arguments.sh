#!/usr/bin/env bash
# long_arguments.sh FOLDER PROGRAM...: checks that each refuses a flag with a value of 100,000 characters as it refuses a short
# one.
set -euo pipefail
folder=$1
long=$(printf '%0100000d' 0)
for program in "${@:2}"; do
  status=0
  "$folder/$program" "--no-such-flag=$long" >/dev/null 2>&1 || status=$?
  ((status == 1 || status == 2)) || { echo "FAIL: $program: exit status $status" >&2; exit 1; }
done
echo "ok: $(($# - 1)) programs"
