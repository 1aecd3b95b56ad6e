#!/usr/bin/env bash
# Checks that every message in docs/troubleshooting.md is in the sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
count=0
while IFS= read -r message; do
  grep -rqF -- "$message" framework models tools || { echo "FAIL: no source says '$message'" >&2; exit 1; }
  count=$((count + 1))
done < <(sed -n 's/^| `\([^`]*\)` |.*/\1/p' docs/troubleshooting.md)
((count > 10)) || { echo "FAIL: only $count messages" >&2; exit 1; }
echo "ok: $count messages"
