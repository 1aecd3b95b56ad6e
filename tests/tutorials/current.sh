#!/usr/bin/env bash
# Checks that the READMEs show the code, the tutorials' commands and their output, and the answers of "Predict first". Lines of output
# must be equal except for numbers with a point, whose last digits depend on the processor, places in files, and the folder of the
# executables. A CTest fixture ran the tutorials before; their output is in runs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../tutorials"
./excerpts.py --check
./predictions.py --check
masked() { sed -E 's/^(\$ export PATH=)[^:]*/\1#/; s/[0-9]+\.[0-9]+(e[-+][0-9]+)?/#/g; s/(byte|offset) [0-9]+/\1 #/g; s/ +/ /g'; }
# By rounding, which depends on the processor, a token may go to another expert.
same_but_for_few_tokens() { # FIGURE FIGURE: bars of tokens, with a point in each number but the counts, behind the bars and in <desc>
  counts_masked() { masked <"$1" | sed -E 's/>[0-9]+</>#</g; s/(expert [0-9]+) [0-9]+/\1 #/g'; }
  numbers() { grep -oE '[0-9]+\.[0-9]+|>[0-9]+<|expert [0-9]+ [0-9]+' "$1" | sed -E 's/expert [0-9]+ //; s/[<>]//g'; }
  diff <(counts_masked "$1") <(counts_masked "$2")
  paste <(numbers "$1") <(numbers "$2") |
    awk '{apart = $1 > $2 ? $1 - $2 : $2 - $1} apart > 6 {print $1 " and " $2; exit 1}' || { echo "FAIL: $1" >&2; exit 1; }
}
for tutorial in [0-9][0-9]_*; do
  readme=$tutorial/README.md output=../runs/$tutorial/output.txt
  shown=$(sed -n '/^<!-- output -->$/,/^<!-- \/output -->$/{/^<!--/d; /^```/d; p}' "$readme" | masked)
  [[ -n $shown ]] || { echo "FAIL: $readme: no output between its markers" >&2; exit 1; }
  diff <(echo "$shown") <(masked <"$output") || { echo "FAIL: $readme: run tutorials/refresh.sh $tutorial" >&2; exit 1; }
  for figure in "$tutorial"/*.svg; do  # times, and the last digits of a loss curve, depend on the processor
    [[ -e $figure && $figure != */@(loss|timeline|save).svg ]] || continue
    if [[ $tutorial == 11_experts ]]; then same_but_for_few_tokens "$figure" "../runs/$figure"; else cmp "$figure" "../runs/$figure"; fi
  done
  grep -q "$tutorial/README.md" README.md || { echo "FAIL: tutorials/README.md does not list $tutorial" >&2; exit 1; }
  echo "ok: $readme"
done
