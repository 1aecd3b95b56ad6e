# Sourced by common.sh and lesson.sh, after `tutorial` is set to their user's name: everything runs at the repository's root
# and writes to runs/$tutorial/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=runs/$tutorial
bin=build/release/bin

fail() { printf '\n%s: %s\n' "$tutorial" "$*" >&2; exit 1; }
name() { IFS=, read -r tp pp dp zero <<<"$1"; echo "tp$tp-pp$pp-dp$dp"; }

# start_of RANKS PROGRAM: sets `start` to the command that runs it on so many ranks, which are threads of one process; with mpi=yes,
# processes of mpirun.
start_of() {
  start=("$bin/$2" --local-ranks "$1")
  [[ -z ${mpi:-} ]] || start=(tools/mpirun.sh "$1" "$bin/$2")
}

# quietly LOG COMMAND...: shows what the command said only if it fails.
quietly() { "${@:2}" >"$1" 2>&1 || { cat "$1" >&2; fail "failed: ${*:2}"; }; }
