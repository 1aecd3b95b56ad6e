#!/usr/bin/env bash
# The READMEs show what the tutorials print: same lines, but for numbers with a point, whose last digits are the processor's, and
# places in files. The tutorials ran before (a fixture of CTest), and left what they printed in runs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../tutorials"
masked() { sed -E 's/[0-9]+\.[0-9]+(e[-+][0-9]+)?/#/g; s/(byte|offset) [0-9]+/\1 #/g; s/ +/ /g'; }
for tutorial in [0-9][0-9]_*; do
  readme=$tutorial/README.md output=../runs/$tutorial/output.txt
  shown=$(sed -n '/^<!-- output -->$/,/^<!-- \/output -->$/{/^<!--/d; /^```/d; p}' "$readme" | masked)
  [[ -n $shown ]] || { echo "FAIL: $readme: no output between its markers" >&2; exit 1; }
  diff <(echo "$shown") <(masked <"$output") || { echo "FAIL: $readme: run tutorials/refresh.sh $tutorial" >&2; exit 1; }
  for figure in "$tutorial"/*.svg; do  # a loss curve's last digits are the processor's
    [[ ! -e $figure || $figure == */loss.svg ]] || cmp "$figure" "../runs/$figure"
  done
  grep -q "$tutorial/README.md" README.md || { echo "FAIL: tutorials/README.md does not list $tutorial" >&2; exit 1; }
  echo "ok: $readme"
done
