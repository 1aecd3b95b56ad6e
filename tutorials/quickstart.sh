#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to the main job in one command:
#
#   tutorials/quickstart.sh                     the King James Bible
#   CORPUS=your.txt tutorials/quickstart.sh     a text of yours
#
# 1. Installs what is missing and builds (the second time there is nothing to do).
# 2. Trains a small byte-level GPT on tensor 2 x pipeline 2 x data 2, ZeRO stage 1, and saves halfway.
# 3. Converts that checkpoint to the universal format.
# 4. Resumes it on six other meshes, and compares every loss with the run that went on undisturbed.
#
# Succeeds only if the curves agree and the model has learned. Everything it writes is in runs/quickstart/, made anew
# each time. CMAKE_PREFIX_PATH=/path/to/libtorch takes that LibTorch in place of the one that tools/setup.sh downloads.
set -euo pipefail
corpus=${CORPUS:+$(realpath -e -- "$CORPUS")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=runs/quickstart
bin=build/release/bin

half=80          # the step of the save
steps=$((2 * half))
model=(--num-layers 5 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
       --init-method-std 0.1 --attention-dropout 0.1 --hidden-dropout 0.1)
recipe=(--global-batch-size 24 --train-iters "$steps" --lr 6e-3 --min-lr 3e-4 --lr-decay-style cosine
        --lr-warmup-iters 10 --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --seed 1234)
data=(--data-path "$out/text_text_document" --tokenizer-type ByteLevelTokenizer --split 90,10,0)
log=(--log-interval 20 --eval-interval 1000 --eval-iters 8)

# Meshes: tensor, pipeline, data parallel size, ZeRO stage. No size but 1 divides the 5 layers or the 257 tokens.
first=2,2,2,1
others=(1,1,1,0 4,1,1,0 1,4,1,0 1,1,4,3 2,1,3,1 1,2,3,2)

fail() { printf '\nquickstart: %s\n' "$*" >&2; exit 1; }
step() { printf '\n== %s\n' "$*"; }
name() { IFS=, read -r tp pp dp zero <<<"$1"; echo "tp$tp-pp$pp-dp$dp"; }
now() { date +%s; }

# quietly LOG COMMAND...: shows what the command said only if it fails.
quietly() { "${@:2}" >"$1" 2>&1 || { cat "$1" >&2; fail "failed: ${*:2}"; }; }

# train MESH RUN FLAGS...: writes RUN.csv and RUN.log, shows the step lines.
train() {
  local tp pp dp zero run=$out/$2
  IFS=, read -r tp pp dp zero <<<"$1"
  tools/mpirun.sh $((tp * pp * dp)) "$bin/pretrain_gpt" "${model[@]}" "${recipe[@]}" "${data[@]}" "${log[@]}" \
      --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --zero-stage "$zero" \
      --micro-batch-size $((6 / dp)) --loss-csv "$run.csv" "${@:3}" </dev/null 2>&1 | tee "$run.log" |
    sed -un 's/^iteration/   iteration/p; s/^validation/   validation/p' ||
    { cat "$run.log" >&2; fail "the run on $(name "$1") failed"; }
}

write_text() {
  if [[ -n $corpus ]]; then
    cp -- "$corpus" "$out/text.txt"
  else  # "Ge1:1 In the beginning ..." to one verse a line without its number, and a blank line between chapters
    bible -f 'Gen1:1-Rev22:21' | awk '{
      chapter = $1; sub(/:.*/, "", chapter); if (NR > 1 && chapter != last) print ""; last = chapter
      sub(/^[^ ]+ /, ""); print}' >"$out/text.txt"
  fi
}

# A validation set is whole documents: paragraphs if there are enough of them, else lines.
tokenize() {
  local unit=paragraph
  (($(grep -c '^[[:space:]]*$' "$out/text.txt" || true) >= 20)) || unit=line
  "$bin/preprocess_data" --input "$out/text.txt" --documents $unit --output-prefix "$out/text" \
      --tokenizer-type ByteLevelTokenizer --append-eod --count-eod | tee "$out/preprocess.log" | sed 's/^/   /'
}

# row MESH RUN NOTE: one line of the table, from the run's CSV and its last line of output.
row() {
  local tp pp dp zero
  IFS=, read -r tp pp dp zero <<<"$1"
  local ended; ended=$(sed -n 's/^done: .*, \(.*\) s per step, peak memory per rank \(.*\) MiB$/\1 \2/p' "$out/$2.log")
  awk -F, -v first=$((half + 1)) -v mesh="$tp x $pp x $dp" -v ranks=$((tp * pp * dp)) -v zero="$zero" \
      -v ended="$ended" -v note="$3" '
    NR == FNR {reference[$1] = $3; next}
    FNR > 1 && $1 >= first {
      if ($1 == first) loss = $3
      delta = ($3 - reference[$1]) / reference[$1]; if (delta < 0) delta = -delta; if (delta > max) max = delta}
    END {split(ended, e, " "); printf "%-10s %5d %5d %14.8f %12s %10.3f %9.1f  %s\n", mesh, ranks, zero, loss,
         note == "" ? sprintf("%.1e", max) : "-", e[1], e[2], note}' "$out/reference.csv" "$out/$2.csv"
}

started=$(now)
step "Set-up"
tools/setup.sh ${CMAKE_PREFIX_PATH:+--no-torch}
[[ $corpus != "$PWD/$out/"* ]] || fail "CORPUS=$CORPUS: $out is about to be made anew; move the text out of it"
rm -rf "$out"
mkdir -p "$out"

step "Build (the first time: a few minutes)"
quietly "$out/configure.log" cmake --preset release
cmake --build --preset release --target pretrain_gpt preprocess_data ds_to_universal plot_loss
built=$(now)

step "Text to tokens"
write_text
tokenize
entropy=$(sed -n 's/^unigram entropy: \(.*\) nats.*/\1/p' "$out/preprocess.log")

step "Train $steps steps on $(name $first), ZeRO 1: eight ranks. Save at step $half (all runs: one to five minutes)"
training=$(now)
train $first reference --save "$out/checkpoints" --save-interval $half

step "Convert the checkpoint of step $half"
"$bin/ds_to_universal" --input_folder "$out/checkpoints/global_step$half" \
    --output_folder "$out/universal/global_step${half}_universal" 2>"$out/convert.err" |
  sed 's/^/   /' || { cat "$out/convert.err" >&2; fail "the conversion failed"; }

curves=("$(name $first), uninterrupted=$out/reference.csv")
done_steps=$steps
for i in "${!others[@]}"; do
  mesh=${others[$i]} run=$(name "${others[$i]}")
  left=$(((${#others[@]} - i) * half * ($(now) - training) / done_steps))
  step "Resume on $run: mesh $((i + 1)) of ${#others[@]}, about $left s left in all"
  train "$mesh" "$run" --load "$out/universal" --universal-checkpoint
  curves+=("$run=$out/$run.csv")
  done_steps=$((done_steps + half))
done

step "Compare"
failures=0
title="Saved at step $half on $(name $first), resumed on ${#others[@]} other meshes"
"$bin/plot_loss" --output "$out/loss_curves.svg" --title "$title" --first-tolerance 1e-6 --tolerance 1e-4 \
    "${curves[@]}" >"$out/comparison.log" || failures=1
printf '%-10s %5s %5s %14s %12s %10s %9s\n' \
    'tp x pp x dp' ranks ZeRO "loss, step $((half + 1))" 'max |delta|' s/step MiB/rank
row $first reference uninterrupted
for mesh in "${others[@]}"; do row "$mesh" "$(name "$mesh")" ''; done
echo "max |delta|: largest relative difference from the uninterrupted run, steps $((half + 1)) to $steps"

validation=$(sed -n 's/^validation loss at the end.*: \([^ ]*\) .*/\1/p' "$out/reference.log")
[[ -n $validation ]] || fail "no validation loss in $out/reference.log"
awk -v loss="$validation" -v entropy="$entropy" 'BEGIN {
  printf "validation loss %.4f; byte-unigram entropy of the text %.4f nats; ratio %.3f\n", loss, entropy, loss / entropy
  exit !(loss <= 0.8 * entropy)}' || { echo "quickstart: the ratio should be at most 0.8" >&2; failures=1; }
echo "curves: $out/loss_curves.svg"
echo "set-up and build $((built - started)) s, main job $(($(now) - built)) s"
((failures == 0)) || fail "see above"
