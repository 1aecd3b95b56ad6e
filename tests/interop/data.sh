#!/usr/bin/env bash
# Token files and the order of samples against megatron-core: data.py says what is compared. Installs what run.sh does, once.
#
#   tests/interop/data.sh [FOLDER_OF_EXECUTABLES]         default: build/release/bin
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$repository/tests/runs/common.sh" "${1:-$repository/build/release/bin}"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv}
"$repository/tests/interop/install.sh" "$venv" "${ANYMESH_DEPS:-$repository/.deps}"

started=$SECONDS
export LD_LIBRARY_PATH=$venv/gpu-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_NUM_THREADS=1 PYTHONPYCACHEPREFIX=$venv/pycache
timeout 300 "$venv/bin/python" "$repository/tests/interop/data.py" "$bin" || fail "see above"
echo "compared data in $((SECONDS - started)) s"
