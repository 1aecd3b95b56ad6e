#!/usr/bin/env bash
# No comment and no page has a sentence that starts with "Of" or with a relative "What" (CONTRIBUTING.md, Plain English); README has
# at most 130 lines; each relative link of a page leads to a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
status=0

rooms=(framework models tools tests examples benchmarks tutorials docs)
files() { find "${rooms[@]}" -path tests/fixtures -prune -o -regextype egrep -regex "$1" -print; }
mapfile -t sources < <(files '.*(CMakeLists\.txt|\.(h|cpp|cu|sh|py))')
sources+=(pretrain_gpt.cpp .ci/run CMakeLists.txt cmake/*.cmake)
mapfile -t pages < <(files '.*\.md')
pages+=(*.md)
((${#sources[@]} > 300 && ${#pages[@]} > 20)) || { echo "FAIL: only ${#sources[@]} sources and ${#pages[@]} pages" >&2; exit 1; }

# Comments without their marks, and prose outside code blocks without the marks of lists and tables, as FILE:LINE:TEXT.
text() {
  grep -HnoE '(//|#) .*' "${sources[@]}" | sed -E 's,^([^:]*:[0-9]+:)(//|#) ,\1,'
  awk 'FNR == 1 {code = 0} /^```/ {code = !code} !code {sub(/^(\| |[0-9]+\. |- )/, ""); print FILENAME ":" FNR ":" $0}' "${pages[@]}"
}
# A question ends in "?": it is no relative clause.
found=$(text | grep -E '(:[0-9]+:|[.:] | (//|#) )(Of|What) ' | grep -vE '(Of|What) [^.]*\?|Of course' || true)
[[ -z $found ]] || { echo "$found" >&2; echo "FAIL: $(wc -l <<<"$found") sentences start with Of or What" >&2; status=1; }

(($(wc -l <README.md) <= 130)) || { echo "FAIL: README.md has $(wc -l <README.md) lines, at most 130 are allowed" >&2; status=1; }

for page in "${pages[@]}"; do
  while read -r link; do
    [[ -e $(dirname "$page")/$link ]] || { echo "FAIL: $page links to $link, which does not exist" >&2; status=1; }
  done < <(awk '/^```/ {code = !code} !code' "$page" | grep -oE '\]\([^)]*\)' | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^(https?:|$)')
done
exit $status
