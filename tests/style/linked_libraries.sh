#!/usr/bin/env bash
# linked_libraries.sh TOOL...: checks that the checkpoint tools run anywhere. Each may need only libc, libstdc++ and their own
# dependencies (threads are in libc since glibc 2.34), and may have at most 5 MB.
set -euo pipefail
failed=0
for tool in "$@"; do
  others=$(readelf -d "$tool" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libstdc\+\+|libgcc_s|libm|libpthread|ld-linux-.*)\.so\.[0-9]+$' || true)
  size=$(stat -c %s "$tool")
  [[ -z $others ]] || { echo "$tool needs" $others; failed=1; }
  ((size <= 5000000)) || { echo "$tool has $size bytes, expected at most 5000000"; failed=1; }
done
((failed == 0)) && echo "ok: $# tools"
