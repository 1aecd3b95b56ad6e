# Sourced by the benchmarks. Sets repository and bin, the folder of the executables ($1, default build/release/bin), enters a
# scratch folder that is removed at the end, and defines functions.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(cd "${1:-$repository/build/release/bin}" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/anymesh-benchmark.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

median() { sort -g "$@" | awk '{t[NR] = $1} END {printf "%.4g", t[int((NR + 1) / 2)]}'; }

# Collects the lines "WORK NAME=VALUE ..." of a measuring program in the file `measured`, as "CASE WORK NAME=VALUE ...".
measure() {  # CASE COMMAND...
  OMP_NUM_THREADS=1 "${@:2}" >measure.log 2>measure.err || { tail -5 measure.err >&2; exit 1; }
  grep -E '^[a-z-]+ s=' measure.log | sed "s/^/$1 /" >>measured
}
checkpoint_cost() {  # CASE RANKS LAYERS HIDDEN TP PP ZERO PRECISION OFFLOAD WORK...
  measure "$1" "$repository/tools/mpirun.sh" "$2" "$bin/checkpoint_cost" "${@:3}"
}
of() { sed -n "s/^$1 $2 .*\b$3=\([0-9.e+-]*\).*/\1/p" measured | median; }  # CASE WORK NAME
warm() { find "$@" -type f -exec cat {} + >/dev/null; }  # FOLDER...: reads the files into the page cache

# Trains without dropout: the median step, ms, without the first three, to NAME.ms; its last loss to NAME.loss.
time_step() {  # FOLDER_OF_EXECUTABLES NAME RANKS THREADS FLAGS...
  OMP_NUM_THREADS=$4 "$repository/tools/mpirun.sh" "$3" "$1/pretrain_gpt" --mock-data --lr 1e-4 --lr-decay-style constant \
    --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --loss-csv run.csv "${@:5}" </dev/null >run.log 2>&1 || { tail -5 run.log; exit 1; }
  tail -n +5 run.csv | cut -d, -f8 | median >>"$2.ms"
  echo >>"$2.ms"
  tail -1 run.csv | cut -d, -f3 >"$2.loss"
}
