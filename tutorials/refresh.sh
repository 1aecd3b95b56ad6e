#!/usr/bin/env bash
# tutorials/refresh.sh [NN_name]...: runs these tutorials, or all. Puts their commands and output between the markers of their
# READMEs, and their curves beside them. Then updates the questions (predictions.py), the code (excerpts.py) and the numbers in
# the exercises (exercises.py). ANYMESH_BIN: the executables' folder.
set -euo pipefail
executables=$(realpath -e -- "${ANYMESH_BIN:-"$(dirname "$0")/../build/release/bin"}")
cd "$(dirname "$0")"
(($#)) || set -- [0-9][0-9]_*
for tutorial in "$@"; do
  echo "== $tutorial"
  "$tutorial/run.sh" "$executables"
  awk -v output="../runs/$tutorial/output.txt" '
    /^<!-- output -->$/ {print; print "```"
                               while ((getline line <output) > 0) {
                                 sub(/^\$ export PATH=[^:]*/, "$ export PATH=$PWD/build/release/bin", line); print line}
                               print "```"; ++found; inside = 1}
    /^<!-- \/output -->$/ {inside = 0}
    !inside
    END {exit !(found == 1 && !inside)}' "$tutorial/README.md" >"../runs/$tutorial/README.md" ||
    { echo "$tutorial/README.md: expected one <!-- output --> and one <!-- /output -->" >&2; exit 1; }
  cp "../runs/$tutorial/README.md" "$tutorial/README.md"
  if compgen -G "../runs/$tutorial/*.svg" >/dev/null; then cp "../runs/$tutorial"/*.svg "$tutorial/"; fi
done
./predictions.py "$@"
./excerpts.py "$@"
./exercises.py --write --bin "$executables" "$@"
