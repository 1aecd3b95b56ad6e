#!/usr/bin/env bash
# Builds the documentation as a site in build/site: the pages of docs/, the lessons and other READMEs, the comments that open the
# headers, and the sources that pages link to. Fails for a link that leads nowhere. The site needs no network.
#
#   docs/site.sh && xdg-open build/site/index.html
#   SOURCE_URL=https://host/anymesh/blob/main/ docs/site.sh     links to sources lead there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.deps/site
if ! cmp -s docs/site/requirements.txt $venv/requirements.txt; then
  rm -rf $venv
  python3 -m venv $venv || { echo "docs/site.sh: python3 -m venv failed: on Debian, apt-get install python3-venv" >&2; exit 1; }
  $venv/bin/pip install --quiet --disable-pip-version-check -r docs/site/requirements.txt
  cp docs/site/requirements.txt $venv/requirements.txt
fi
mkdir -p build
$venv/bin/python docs/site/stage.py build/site-pages
$venv/bin/mkdocs build --strict --clean --config-file build/site-pages/mkdocs.yml 2>&1 |
  { grep -v "^INFO " || true; }  # with --quiet, --strict would see no warning
echo "build/site: $(find build/site -name '*.html' | wc -l) pages, $(du -sh build/site | cut -f1)"
