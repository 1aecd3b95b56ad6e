# Sourced by the tests against other packages. Sources the run tests' common.sh with the executables' folder from $1 (default:
# build/release/bin). The packages are in a venv (ANYMESH_INTEROP_VENV, default: build/interop-venv), where the first script that
# needs them installs them. ANYMESH_INTEROP_SOCKET: where warm.py serves, if it does.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$repository/tests/runs/common.sh" "${1:-$repository/build/release/bin}"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv}
python=("$venv/bin/python")
[[ -z ${ANYMESH_INTEROP_SOCKET:-} ]] || python+=(-S "$repository/tests/interop/warm.py" run "$ANYMESH_INTEROP_SOCKET")

# For a command that uses those packages: where libraries are, and compiled modules, which the next Python loads faster. Functions
# for torch.compile, such as Muon's step, run as they are written.
settings=("LD_LIBRARY_PATH=$venv/gpu-stand-ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "PYTHONPYCACHEPREFIX=$venv/pycache"
          PYTHONDONTWRITEBYTECODE= DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1)
install() { "$repository/tests/interop/install.sh" "$venv" "${ANYMESH_DEPS:-$repository/.deps}"; }

with_packages() { # SECONDS COMMAND...
  install
  timeout "$1" env "${settings[@]}" "${@:2}" &
  wait $! || fail "see above"  # in the background, so that it ends with this script
}
compare() { # SECONDS SCRIPT ARGS...: runs a script of this folder, and says how long it took
  local started=$SECONDS
  with_packages "$1" "${python[@]}" "$repository/tests/interop/$2" "${@:3}"
  echo "$2 took $((SECONDS - started)) s"
}
