#!/usr/bin/env bash
# Prints the path of Chromium; nothing if there is none. In CI installs Debian's package first.
set -euo pipefail
find_it() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }
if [[ -z $(find_it) && -n ${CI:-} ]]; then
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  { "${as_root[@]}" apt-get update && "${as_root[@]}" apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } >&2
fi
find_it
