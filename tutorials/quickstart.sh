#!/usr/bin/env bash
# Goes from a fresh Debian or Ubuntu to the main job in one command:
#
#   tutorials/quickstart.sh                     the King James Bible
#   CORPUS=your.txt tutorials/quickstart.sh     a text of yours
#
# 1. Installs the missing packages and builds (the second time there is nothing to do).
# 2. Trains a small byte-level GPT on tensor 2 x pipeline 2 x data 2, ZeRO stage 1, and saves halfway.
# 3. Converts that checkpoint to the universal format, and shows what the model writes before and after training.
# 4. Resumes it on six other meshes, and compares every loss and gradient norm with the undisturbed run.
#
# Succeeds only if all digits agree (--same-bits) and the model has learned. Everything is written to runs/quickstart/, made anew each time.
# CMAKE_PREFIX_PATH=/path/to/libtorch uses that LibTorch instead of the download of tools/setup.sh.
tutorial=quickstart
half=60          # the step of the save
steps=$((2 * half))
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe+=(--same-bits)

# Meshes: tensor, pipeline, data parallel size, ZeRO stage. Only size 1 divides the 5 layers or the 257 tokens.
first=2,2,2,1
others=(1,1,1,0 4,1,1,0 1,4,1,0 1,1,4,3 2,1,3,1 1,2,3,2)

# row MESH RUN SAME: prints one line of the table, from the run's CSV and its last line of output.
row() {
  local tp pp dp zero
  IFS=, read -r tp pp dp zero <<<"$1"
  local ended; ended=$(sed -n 's/^done: .*, \(.*\) s per step, peak memory \(per rank\|of all ranks\) \(.*\) MiB$/\1 \3 \2/p' "$out/$2.log")
  awk -F, -v mesh="$tp x $pp x $dp" -v ranks=$((tp * pp * dp)) -v zero="$zero" -v first=$((half + 1)) \
      -v last="$steps" -v same="$3" -v ended="$ended" '
    $1 == first {start = $3}
    $1 == last {end = $3}
    END {split(ended, e, " "); printf "%-10s %5d %5d  %-14s  %-14s  %-9s %6.3f %9.1f\n", mesh, ranks, zero, start, end, same,
         e[1], e[2] * (e[3] == "per" ? ranks : 1)}' "$out/$2.csv"
}

# numbers RUN: prints all but the times of the second half's steps.
numbers() { tail -n $half "$out/$1.csv" | cut -d, -f1-6; }

# same RUN: tells if the run has the numbers of the uninterrupted one, in every digit.
same() { cmp -s <(numbers reference) <(numbers "$1") && echo yes || echo no; }

# sample TAG_FOLDER WHAT: prints a text as long as the model's positions, on one line.
sample() {
  printf '   %-14s' "$2"
  "$bin/generate" --load "$1" --num-tokens-to-generate 63 --temperature 0.7 2>"$out/generate.log" |
    tr '\n' ' ' | tr '\000-\037\177' '.' || { cat "$out/generate.log" >&2; fail "no text from $1"; }
  echo
}

prepare
entropy=$(sed -n 's/^unigram entropy: \(.*\) nats.*/\1/p' "$out/preprocess.log")

step "Train $steps steps on $(name $first), ZeRO 1: eight ranks. Save at step $half (all runs: one to five minutes)"
training=$(now)
train $first reference --save "$out/checkpoints" --save-interval $half \
  --report-memory --report-comm --profile-step $half --trace "$out/reference.json"  # for the report

step "Convert the checkpoint of step $half"
convert "$out/checkpoints/global_step$half" "$out/universal/global_step${half}_universal"

step "What it writes behind an empty line, at temperature 0.7"
train 1,1,1,0 untrained --exit-interval 1 --save "$out/untrained" >/dev/null
sample "$out/untrained/global_step1" "after 1 step"
sample "$out/checkpoints/global_step$half" "after $half"
sample "$out/checkpoints/global_step$steps" "after $steps"

curves=("$(name $first), uninterrupted=$out/reference.csv")
done_steps=$steps
for i in "${!others[@]}"; do
  mesh=${others[$i]} run=$(name "${others[$i]}")
  left=$(((${#others[@]} - i) * half * ($(now) - training) / done_steps))
  step "Resume on $run: mesh $((i + 1)) of ${#others[@]}, about $left s left in all"
  ((i + 1 < ${#others[@]})) || mpi=yes  # the last on processes, as real runs are
  train "$mesh" "$run" --load "$out/universal" --universal-checkpoint
  curves+=("$run=$out/$run.csv")
  done_steps=$((done_steps + half))
done

step "Compare"
failures=0
title="Saved at step $half on $(name $first), resumed on ${#others[@]} other meshes"
quietly "$out/comparison.log" "$bin/plot_loss" --output "$out/loss_curves.svg" --title "$title" "${curves[@]}"
printf '%-10s %4s %5s  %-14s  %-14s  %-9s %6s %9s\n' 'tp x pp x dp' ranks ZeRO "loss, step $((half + 1))" "step $steps" 'same bits' s/step MiB
row $first reference "saved"
for mesh in "${others[@]}"; do
  yes=$(same "$(name "$mesh")")
  row "$mesh" "$(name "$mesh")" "$yes"
  [[ $yes == yes ]] || failures=1
done
echo "same bits: all losses and gradient norms of steps $((half + 1)) to $steps are those of the first run, in every digit"

validation=$(validation_loss reference)
awk -v loss="$validation" -v entropy="$entropy" 'BEGIN {
  printf "validation loss %.4f; byte-unigram entropy of the text %.4f nats; ratio %.3f\n", loss, entropy, loss / entropy
  exit !(loss <= 0.8 * entropy)}' || { echo "quickstart: the ratio should be at most 0.8" >&2; failures=1; }
echo "curves: $out/loss_curves.svg"
spent "main job"
echo "time: $times"
((failures == 0)) || fail "see above"
echo "The model is tiny and has trained for $steps steps: it has learned letters and a few short words."
echo "next: tutorials/read_it.sh, three minutes to a model that writes sentences; tutorials/README.md, eighteen lessons"
