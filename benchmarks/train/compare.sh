#!/usr/bin/env bash
# Times steps of two builds of pretrain_gpt side by side: hidden 384 and GPT-2's width, as one process of two threads and as two
# ranks of one thread (tp, dp, pp). Medians of ROUNDS runs' median step, without the first three steps; the builds take turns.
# Prints their ratio, and stops if the last losses differ by more than 1e-4.
#
#   ROUNDS=5 benchmarks/train/compare.sh FOLDER_OF_EXECUTABLES ANOTHER
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
rounds=${ROUNDS:-5}
folders=("$bin" "$(cd "$repository" && realpath "${2:?give two folders of executables}")")
declare -A shapes=(
  [hidden-384]="--num-layers 6 --hidden-size 384 --num-attention-heads 6 --seq-length 256 --max-position-embeddings 256
                --vocab-size 256 --micro-batch-size 2 --global-batch-size 8 --train-iters 11"
  [gpt2]="--num-layers 4 --hidden-size 768 --num-attention-heads 12 --seq-length 512 --max-position-embeddings 512
          --vocab-size 50304 --micro-batch-size 1 --global-batch-size 2 --train-iters 7"
)

echo "| size | mesh | ms, the first | ms, the second | second / first |"
echo "|---|---|---|---|---|"
for size in hidden-384 gpt2; do
  while read -r mesh ranks threads flags; do
    for ((round = 0; round < rounds; ++round)); do
      for k in 0 1; do
        # shellcheck disable=SC2086
        time_step "${folders[k]}" "$size-$mesh-$k" "$ranks" "$threads" ${shapes[$size]} $flags
      done
    done
    awk -v size="$size" -v mesh="$mesh" -v a="$(median "$size-$mesh-0.ms")" -v b="$(median "$size-$mesh-1.ms")" \
        'BEGIN {printf "| %s | %s | %.1f | %.1f | %.3f |\n", size, mesh, a, b, b / a}'
    awk 'NR == 1 {a = $1} NR == 2 {d = $1 - a; exit !(d < 1e-4 && d > -1e-4)}' "$size-$mesh-0.loss" "$size-$mesh-1.loss" ||
      { echo "$size, $mesh: the losses differ: $(cat "$size-$mesh"-?.loss)"; exit 1; }
  done <<'END'
one-process 1 2
tp2 2 1 --tensor-model-parallel-size 2
tp2-sequence 2 1 --tensor-model-parallel-size 2 --sequence-parallel
dp2 2 1
dp2-zero3 2 1 --zero-stage 3
pp2 2 1 --pipeline-model-parallel-size 2
END
done
