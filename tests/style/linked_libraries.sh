#!/usr/bin/env bash
# The tools over checkpoints run anywhere: linked_libraries.sh TOOL... checks that each asks for libc, libstdc++ and what
# these bring along only (threads are in libc since glibc 2.34), and that it has at most 5 MB.
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
