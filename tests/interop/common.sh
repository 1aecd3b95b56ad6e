# Sourced by the tests against other packages: the run tests' common.sh, with the executables' folder from $1 (default:
# build/release/bin), and the packages, installed into a venv (ANYMESH_INTEROP_VENV, default: build/interop-venv) once.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$repository/tests/runs/common.sh" "${1:-$repository/build/release/bin}"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv}
"$repository/tests/interop/install.sh" "$venv" "${ANYMESH_DEPS:-$repository/.deps}"

compare() { # SECONDS SCRIPT ARGS...: a script of this folder, with those packages
  LD_LIBRARY_PATH=$venv/gpu-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPYCACHEPREFIX=$venv/pycache \
    timeout "$1" "$venv/bin/python" "$repository/tests/interop/$2" "${@:3}" || fail "see above"
}
