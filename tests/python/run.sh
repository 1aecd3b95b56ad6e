#!/usr/bin/env bash
# Builds and installs the Python package, with what its tests need, into a venv, and runs them. Arguments go to pytest.
#
#   tests/python/run.sh [-k reshard]
#
# ANYMESH_PYTHON_VENV names the venv (default: build/python-venv); PYTHON the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" cmake/versions.cmake; }
needs=("scikit-build-core==$(pinned ANYMESH_SCIKIT_BUILD_CORE_VERSION)" "nanobind==$(pinned ANYMESH_NANOBIND_VERSION)"
       "pytest==$(pinned ANYMESH_PYTEST_VERSION)" "ml_dtypes==$(pinned ANYMESH_ML_DTYPES_VERSION)"
       "mypy==$(pinned ANYMESH_MYPY_VERSION)" numpy)
venv=${ANYMESH_PYTHON_VENV:-build/python-venv}
stamp=$venv/$(tr -d ' =' <<<"${needs[*]}").done
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
if [[ ! -e $stamp ]]; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
  pip install "${needs[@]}"
  touch "$stamp"
fi
pip install --no-build-isolation --no-deps .
exec "$venv/bin/python" -B -m pytest -q -p no:cacheprovider -W error::pytest.PytestWarning "$@" tests/python
