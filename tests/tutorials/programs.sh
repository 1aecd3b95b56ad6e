#!/usr/bin/env bash
# programs.sh FROM TO: makes a folder with the programs that lessons say they need, and no others. The lessons run from there.
set -euo pipefail
rm -rf "$2"
mkdir -p "$2"
for program in $("$(dirname "${BASH_SOURCE[0]}")/../../tutorials/programs.sh" --lessons); do ln -s "$1/$program" "$2/"; done
