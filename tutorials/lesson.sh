# Sourced by NN_name/run.sh with its arguments: [--predict] [FOLDER OF THE EXECUTABLES] (else $ANYMESH_BIN, else build/release/bin).
# $FLAGS, if set, adds flags to every run of the lesson. Files go to runs/NN_name/, made anew each time.
folder=${ANYMESH_BIN:-} predicting=
for argument; do
  if [[ $argument == --predict ]]; then predicting=yes; else folder=${argument:-$folder}; fi
done
[[ -z $folder ]] || folder=$(realpath -e -- "$folder") || exit 1
tutorial=$(basename "$(dirname "$(realpath "${BASH_SOURCE[1]}")")")
source "$(dirname "${BASH_SOURCE[0]}")/base.sh"
[[ -z $folder ]] || bin=$(realpath --relative-base="$PWD" "$folder")
fail() { printf 'FAIL: %s: %s\n' "$tutorial" "$*" >&2; exit 1; }
needs() {
  local each
  for each in "$@"; do
    [[ -x $bin/$each ]] ||
      fail "no $bin/$each: build it (cmake --preset release && cmake --build --preset release), or name its folder as argument 1"
  done
}
needs pretrain_gpt plot_loss plot_figure
program=pretrain_gpt
rm -rf "$out"
mkdir -p "$out"
export OMP_NUM_THREADS=1  # threads change the order of sums

steps=60
model=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32)
data=(--mock-data --vocab-size 256)
recipe=(--micro-batch-size 1 --global-batch-size 8 --train-iters "$steps" --lr 3e-3 --lr-warmup-iters 5 --seed 1234
        --eval-iters 0 --log-interval 10 --device cpu)

source tutorials/commands.sh
source tutorials/predict.sh
show_header

# train MESH RUN FLAGS...: runs a command_of to its end, with its output in $out/RUN.log.
train() {
  command_of "$@"
  working "$1"
  (launch) >"$out/$2.log" 2>&1 && { worked; return; }
  # Leaves out the command, the settings, the steps, and mpirun's own messages.
  sed -E '/^\$ /,/[^\\]$/d; /^-{20}/,/^-{20}/d; /^(  --|(mesh|model|data): |memory kept|iter )/d' "$out/$2.log" | head -20 >&2
  fail "the run $2 on $(name "$1") failed: $out/$2.log"
}

# loss RUN STEP: prints the loss with four digits.
loss() { awk -F, -v step="$2" '$1 == step {printf "%.4f", $3}' "$out/$1.csv"; }

# memory RUN PART: prints the MiB on the largest rank, for a run with --report-memory.
memory() { sed -n "s/^memory: $2  *\([0-9.]*\) .*/\1/p" "$out/$1.log"; }

# traffic RUN: prints the communication of the last step, for a run with --report-comm.
traffic() { say "$(sed -n '/^group/,/^done/{/^done/!p}' "$out/$1.log")"; }

# moved RUN GROUP VERB: prints the bytes of rank 0 in the last step, for a run with --report-comm.
moved() { awk -v group="$2" -v verb="$3" '$1 == group && $2 == verb {print $4}' "$out/$1.log"; }

# parameters RUN: prints their number. per_parameter RUN PART...: the bytes of memory for each, for a run with --report-memory.
parameters() { sed -n 's/^model: \([0-9]*\) .*/\1/p' "$out/$1.log"; }
per_parameter() {
  local part
  for part in "${@:2}"; do memory "$1" "$part"; done |
    awk -v count="$(parameters "$1")" '{bytes += $1 * 2 ^ 20} END {printf "%.3g", bytes / count}'
}

# bitwise A B WHAT: checks that the losses of two runs are the same text at every step that both have.
bitwise() { compare "$1" "$2" "$3" bit-identical --bitwise; }

# close A B TOLERANCE WHAT: checks that every loss agrees within the relative TOLERANCE.
close() { compare "$1" "$2" "$4" "within $3" --tolerance "$3"; }

# compare A B WHAT RESULT FLAGS OF plot_loss...
compare() {
  local n; n=$(comm -12 <(cut -d, -f1 "$out/$1.csv" | sort) <(cut -d, -f1 "$out/$2.csv" | sort) | grep -c '^[0-9]') ||
    fail "$3: no steps to compare"
  show "$bin/plot_loss" "${@:5}" "$out/$1.csv" "$out/$2.csv"
  "$bin/plot_loss" "${@:5}" "$out/$1.csv" "$out/$2.csv" >"$out/compare.log" 2>&1 ||
    { cat "$out/compare.log" >&2; fail "$3: not $4"; }
  say "ok: $3: $4 over $n steps"
}

# convert TAG_FOLDER UNIVERSAL_FOLDER
convert() { quietly "$out/convert.log" "$bin/ds_to_universal" --input_folder "$1" --output_folder "$2"; }
