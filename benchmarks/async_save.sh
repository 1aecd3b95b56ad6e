#!/usr/bin/env bash
# What saves cost a training run of 100 steps of a GPT-2 of 124M parameters, with one every 10: not saving, saving, and saving
# beside the training. Needs 10 GB of memory and 6 GB of disk.
#
#   RANKS=2 SEQ=128 BATCH=4 benchmarks/async_save.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
ranks=${RANKS:-1} seq=${SEQ:-128} batch=${BATCH:-4} steps=${STEPS:-100} every=${EVERY:-10}

train() {  # KIND FLAGS...
  rm -rf checkpoints
  OMP_NUM_THREADS=1 "$repository/tools/mpirun.sh" "$ranks" "$bin/pretrain_gpt" --num-layers 12 --hidden-size 768 \
      --num-attention-heads 12 --seq-length "$seq" --max-position-embeddings "$seq" --mock-data --vocab-size 50257 \
      --micro-batch-size 1 --global-batch-size "$batch" --lr 1e-4 --lr-decay-style constant --eval-iters 0 --zero-stage 1 \
      --train-iters "$steps" "${@:2}" >"$1.log" 2>&1 || { tail -5 "$1.log"; exit 1; }
}
seconds() {  # KIND FLAGS...: of the whole run, less one that ends before its first step
  local start=$EPOCHREALTIME
  train "$@"
  awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}'
}
save=(--save checkpoints --save-interval "$every" --save-total-limit 1 --report-save)
setup=$(seconds setup --dry-run)
declare -A took
for kind in none sync async; do
  flags=()
  [[ $kind == none ]] || flags=("${save[@]}")
  [[ $kind == async ]] && flags+=(--async-save)
  took[$kind]=$(seconds $kind "${flags[@]}")
done
# Milliseconds of stall a save; the last of an asynchronous run has no step to hide behind.
stalls() { grep -o 'stall [0-9.]*' "$1.log" | cut -d' ' -f2; }
mean() { awk '{sum += $1; ++n} END {printf "%.1f", sum / n}'; }
sync=$(stalls sync | mean) hidden=$(stalls async | head -n -1 | mean) last=$(stalls async | tail -1)
echo "$ranks ranks, $steps steps of $((seq * batch)) tokens, a save every $every"
echo "| saves | seconds | tokens/s |"
echo "|---|---|---|"
for kind in none sync async; do
  awk -v kind=$kind -v t="${took[$kind]}" -v setup="$setup" -v tokens=$((steps * seq * batch)) \
    'BEGIN {printf "| %s | %.1f | %.1f |\n", kind, t - setup, tokens / (t - setup)}'
done
awk -v sync="$sync" -v hidden="$hidden" -v last="$last" 'BEGIN {
  printf "stall of a save, ms: synchronous %s, asynchronous %s (%.1f %%); of the last, which ends the run, %s\n", sync, hidden, 100 * hidden / sync, last}'
