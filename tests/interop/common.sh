# Sourced by the tests against other packages. Sources the run tests' common.sh with the executables' folder from $1 (default:
# build/release/bin), and installs the packages once into a venv (ANYMESH_INTEROP_VENV, default: build/interop-venv).
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$repository/tests/runs/common.sh" "${1:-$repository/build/release/bin}"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv}
"$repository/tests/interop/install.sh" "$venv" "${ANYMESH_DEPS:-$repository/.deps}"

# with_packages SECONDS COMMAND...: runs it so that it finds those packages' libraries. Functions for torch.compile, such as
# Muon's step, run as they are written.
with_packages() {
  LD_LIBRARY_PATH=$venv/gpu-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 \
    PYTHONPYCACHEPREFIX=$venv/pycache TORCHDYNAMO_DISABLE=1 timeout "$@" || fail "see above"
}
compare() { # SECONDS SCRIPT ARGS...: runs a script of this folder, with those packages
  with_packages "$1" "$venv/bin/python" "$repository/tests/interop/$2" "${@:3}"
}
