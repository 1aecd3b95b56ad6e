#!/usr/bin/env bash
# No comment and no page has a sentence that starts with "Of" or with a relative "What" (CONTRIBUTING.md, Plain English); README has
# at most 130 lines; each relative link of a page leads to a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
shopt -s globstar nullglob
status=0

sources=(pretrain_gpt.cpp {framework,models,tools,tests,examples,benchmarks,tutorials}/**/*.{h,cpp,cu,sh,py} **/CMakeLists.txt cmake/*.cmake .ci/run)
pages=(*.md {docs,tests,tutorials,examples,benchmarks}/**/*.md)
keep() { printf '%s\n' "$@" | grep -vE '^(build|runs|\.deps|tests/fixtures)/'; }
mapfile -t sources < <(keep "${sources[@]}")
mapfile -t pages < <(keep "${pages[@]}")
((${#sources[@]} > 300 && ${#pages[@]} > 20)) || { echo "FAIL: only ${#sources[@]} sources and ${#pages[@]} pages" >&2; exit 1; }

# A question ends in "?": it is no relative clause.
idiom() { grep -HnE "$1" "${@:2}" | grep -vE '(Of|What) [^.]*\?' | grep -v 'Of course' || true; }
found=$(idiom '(^|[^:"])(//|#) (Of|What) |(//|#) .*[.:] (Of|What) ' "${sources[@]}"
        awk 'FNR == 1 {code = 0} /^```/ {code = !code} !code {print FILENAME ":" FNR ": " $0}' "${pages[@]}" |
          grep -E ': (\| |[0-9]+\. |- )?(Of|What) |[.:] (Of|What) ' | grep -vE '(Of|What) [^.]*\?|Of course' || true)
[[ -z $found ]] || { echo "$found" >&2; echo "FAIL: $(wc -l <<<"$found") sentences start with Of or What" >&2; status=1; }

(($(wc -l <README.md) <= 130)) || { echo "FAIL: README.md has $(wc -l <README.md) lines, at most 130 are allowed" >&2; status=1; }

for page in "${pages[@]}"; do
  while read -r link; do
    [[ -e $(dirname "$page")/$link ]] || { echo "FAIL: $page links to $link, which does not exist" >&2; status=1; }
  done < <(grep -oE '\]\([^)]*\)' "$page" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^(https?:|$)')
done
exit $status
