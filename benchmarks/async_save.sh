#!/usr/bin/env bash
# Measures the cost of saves for 100 training steps of a GPT-2 with 124M parameters, with a save every 10. Runs without saves,
# with synchronous and with asynchronous saves take turns. Medians of ROUNDS runs. Needs 10 GB of memory and 6 GB of disk.
#
#   ROUNDS=1 RANKS=2 SEQ=128 BATCH=4 benchmarks/async_save.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
ranks=${RANKS:-1} seq=${SEQ:-128} batch=${BATCH:-4} steps=${STEPS:-100} every=${EVERY:-10} rounds=${ROUNDS:-1}

train() {  # KIND FLAGS...
  rm -rf checkpoints
  OMP_NUM_THREADS=1 "$repository/tools/mpirun.sh" "$ranks" "$bin/pretrain_gpt" --num-layers 12 --hidden-size 768 \
      --num-attention-heads 12 --seq-length "$seq" --max-position-embeddings "$seq" --mock-data --vocab-size 50257 \
      --micro-batch-size 1 --global-batch-size "$batch" --lr 1e-4 --lr-decay-style constant --eval-iters 0 --zero-stage 1 \
      --train-iters "$steps" "${@:2}" >"$1.log" 2>&1 || { tail -5 "$1.log"; exit 1; }
}
seconds() {  # KIND FLAGS...: prints the time of the whole run
  local start=$EPOCHREALTIME
  train "$@"
  awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}'
}
save=(--save checkpoints --save-interval "$every" --save-total-limit 1 --report-save)
setup=$(seconds setup --dry-run)
# Milliseconds for which each save stalls the training. The last asynchronous save has no step to hide behind.
stalls() { grep -o 'stall [0-9.]*' "$1.log" | cut -d' ' -f2; }
mean() { awk '{sum += $1; ++n} END {printf "%.1f\n", sum / n}'; }
for ((round = 0; round < rounds; ++round)); do
  seconds none >>none.took
  seconds sync "${save[@]}" >>sync.took
  seconds async "${save[@]}" --async-save >>async.took
  stalls sync | mean >>sync.stalls
  stalls async | head -n -1 | mean >>async.stalls
  stalls async | tail -1 >>last.stalls
done
sync=$(median sync.stalls) hidden=$(median async.stalls) last=$(median last.stalls)
echo "$ranks ranks, $steps steps of $((seq * batch)) tokens, a save every $every"
echo "| saves | seconds | tokens/s |"
echo "|---|---|---|"
for kind in none sync async; do
  awk -v kind=$kind -v t="$(median $kind.took)" -v setup="$setup" -v tokens=$((steps * seq * batch)) \
    'BEGIN {printf "| %s | %.1f | %.1f |\n", kind, t - setup, tokens / (t - setup)}'
done
awk -v sync="$sync" -v hidden="$hidden" -v last="$last" 'BEGIN {
  printf "stall of a save, ms: synchronous %s, asynchronous %s (%.1f %%); of the last, which ends the run, %s\n", sync, hidden, 100 * hidden / sync, last}'
