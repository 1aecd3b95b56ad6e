#!/usr/bin/env bash
# docs.sh [FOLDER OF THE EXECUTABLES]: builds the documentation's site (docs/site.sh), checks that its links are checked, looks at some of
# its pages in headless Chromium (pages.py), and moves the page that moves (mesh.py), with plan beside it if it is built. Without
# Chromium, CI installs it and others skip that part.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cd "$here/../.."
fail() { echo "FAIL: $*" >&2; exit 1; }
docs/site.sh
grep -q 'id="L1"' build/site/source/framework/engine.cpp.html || fail "the sources have no numbered lines"
grep -q 'href="../plan.html"' build/site/docs/mesh/index.html || fail "the page that moves has no links to pages"
grep -q '<h2 id="zero_optimizerh">' build/site/headers/framework-zero.html || fail "the headers' manuals are missing"

# A small repository with one page: a good one, then two with a link to nothing and one with a broken formula.
small=$(mktemp -d)
trap 'rm -rf "$small"' EXIT
mkdir -p "$small/docs" "$small/tutorials" "$small/.deps"
cp -r docs/site docs/site.sh "$small/docs"
ln -s "$PWD/.deps/site" "$small/.deps/site"
echo '# Lessons' >"$small/tutorials/README.md"
git -C "$small" init -q
build() {
  printf '%s\n' '# Small' '' '## Part' '' "$1" >"$small/README.md"
  git -C "$small" add -A
  "$small/docs/site.sh" >"$small/log" 2>&1
}
build $'[part](#part), [lessons](tutorials/README.md), [source](docs/site.sh#L3), `$5`, $\\frac{1}{d}$
\n```math\n\\begin{aligned} a &= \\sum_k x_k \\\\ b &= 1 \\end{aligned}\n```' ||
  fail "a good page: $(cat "$small/log")"
(($(grep -o '<math ' "$small/build/site/index.html" | wc -l) == 2)) || fail "formulas are not MathML"
! grep -q 'arithmatex\|\\frac' "$small/build/site/index.html" || fail "a formula is left as it was"
! grep -q '<mi>&' "$small/build/site/index.html" && grep -q '<mtable' "$small/build/site/index.html" || fail "lines are not aligned"
grep -q 'href="source/docs/site.sh.html#L3"' "$small/build/site/index.html" || fail "a link to a source leads elsewhere"
SOURCE_URL=https://host/ build '[source](docs/site.sh#L3)' || fail "SOURCE_URL: $(cat "$small/log")"
grep -q 'href="https://host/docs/site.sh#L3"' "$small/build/site/index.html" || fail "SOURCE_URL has no effect"
for bad in '[x](docs/none.md)' '$a & b$' '[x](tutorials/README.md#none)' '[x](#none)' '[x](none.cpp)' '$\nosuch{1}$' '[x](/etc/passwd)'; do
  ! build "$bad" || fail "nobody complains about $bad"
done
mkdir -p "$small/docs/page" && echo '<a href="../none.md">x</a>' >"$small/docs/page/index.html"
! build '' && grep -q 'docs/page/index.html: links to ../none.md' "$small/log" || fail "nobody complains about a link of a page in HTML"
echo "ok: links and formulas are checked"

chromium=$("$here/chromium.sh")
[[ -n $chromium ]] || { echo "skipped: no Chromium (apt-get install chromium)"; exit 77; }
python3 "$here/pages.py" "$chromium" --site build/site index.html tutorials/index.html tutorials/05_pipeline_parallel/index.html \
    docs/scaling.html docs/mesh/index.html headers/framework-zero.html source/framework/engine.cpp.html
plan=${1:-build/release/bin}/plan
[[ -x $plan ]] || plan=
python3 "$here/mesh.py" "$chromium" build/site/docs/mesh/index.html ${plan:+"$plan"}
