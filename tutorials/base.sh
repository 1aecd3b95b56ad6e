# Sourced by common.sh and lesson.sh, which set `tutorial` to their user's name before. Everything runs at the repository's root
# and writes to runs/$tutorial/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=runs/$tutorial
bin=build/release/bin

fail() { printf '\n%s: %s\n' "$tutorial" "$*" >&2; exit 1; }
name() { IFS=, read -r tp pp dp zero <<<"$1"; echo "tp$tp-pp$pp-dp$dp"; }

# start_of RANKS PROGRAM: sets `start` to the command that runs PROGRAM on RANKS ranks. The ranks are threads of one process, or
# with mpi=yes, processes of mpirun.
start_of() {
  start=("$bin/$2" --local-ranks "$1")
  [[ -z ${mpi:-} ]] || start=(tools/mpirun.sh "$1" "$bin/$2")
}

# show COMMAND...: lesson.sh prints the command.
show() { :; }

# quietly LOG COMMAND...: shows the command's output only if it fails.
quietly() { show "${@:2}"; "${@:2}" >"$1" 2>&1 || { cat "$1" >&2; fail "failed: ${*:2}"; }; }

# Shows the runs on one page at the end of a success, if the program for it is built. Its path goes to the terminal alone.
write_report() {
  [[ $1 == 0 && -x $bin/report ]] || return 0
  "$bin/report" --output "$out/report.html" "$out" 2>"$out/report.log" || true  # it tells of files that are damaged on purpose
  [[ ! -s $out/report.html ]] || echo "report: $out/report.html"
}
trap 'write_report $?' EXIT
