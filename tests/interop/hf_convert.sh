#!/usr/bin/env bash
# hf_convert against transformers: hf_convert.py says what is compared. Installs what run.sh does, once.
#
#   tests/interop/hf_convert.sh [FOLDER_OF_EXECUTABLES]   default: build/release/bin
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$repository/tests/runs/common.sh" "${1:-$repository/build/release/bin}"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv}
"$repository/tests/interop/install.sh" "$venv" "${ANYMESH_DEPS:-$repository/.deps}"

started=$SECONDS
export LD_LIBRARY_PATH=$venv/gpu-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_NUM_THREADS=1 PYTHONPYCACHEPREFIX=$venv/pycache
timeout 900 "$venv/bin/python" "$repository/tests/interop/hf_convert.py" "$bin" || fail "see above"
echo "converted in $((SECONDS - started)) s"
