#!/usr/bin/env bash
# Times a step on two cores, as one process of two threads and as two ranks of one thread: data, tensor and pipeline parallel,
# ZeRO 0 to 3. Also times a step of the tutorial's size on four ranks, which is nearly all overhead. Medians of ROUNDS runs'
# median step, without the first three steps; the runs alternate. The losses of all meshes of a size must agree.
#
#   ROUNDS=5 PRECISIONS="fp32 bf16" benchmarks/train/meshes.sh [FOLDER_OF_EXECUTABLES]     default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
rounds=${ROUNDS:-5}
medium=(--num-layers 6 --hidden-size 384 --num-attention-heads 6 --seq-length 256 --max-position-embeddings 256 --vocab-size 256
  --global-batch-size 8 --train-iters 12)
tutorial=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --vocab-size 512
  --global-batch-size 8 --micro-batch-size 1 --train-iters 100)

echo "| mesh | precision | ms a step | time / one process | last loss |"
echo "|---|---|---|---|---|"
for precision in ${PRECISIONS:-fp32 bf16}; do
  flags=()
  [[ $precision == fp32 ]] || flags=(--bf16)
  rm -f ./*.ms
  names=()
  for ((round = 0; round < rounds; ++round)); do
    names=()
    while read -r name ranks threads mesh; do
      names+=("$name")
      # shellcheck disable=SC2086
      time_step "$bin" "$name" "$ranks" "$threads" "${medium[@]}" "${flags[@]}" $mesh
    done <<'END'
one-process 1 2 --micro-batch-size 8
dp2-zero0 2 1 --micro-batch-size 4
dp2-zero1 2 1 --micro-batch-size 4 --zero-stage 1
dp2-zero2 2 1 --micro-batch-size 4 --zero-stage 2
dp2-zero3 2 1 --micro-batch-size 4 --zero-stage 3
tp2 2 1 --micro-batch-size 8 --tensor-model-parallel-size 2
pp2 2 1 --micro-batch-size 1 --pipeline-model-parallel-size 2
END
    time_step "$bin" tutorial-tp2pp2 4 1 "${tutorial[@]}" "${flags[@]}" --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --zero-stage 1
  done
  for name in "${names[@]}" tutorial-tp2pp2; do
    awk -v name="$name" -v precision="$precision" -v ms="$(median "$name.ms")" -v one="$(median one-process.ms)" -v loss="$(cat "$name.loss")" \
      -v first="$(cat one-process.loss)" -v most="$([[ $precision == fp32 ]] && echo 1e-5 || echo 2e-2)" 'BEGIN {
        same = name ~ /^tutorial/ || (loss - first) ^ 2 <= (most * first) ^ 2
        printf "| %s | %s | %.1f | %s | %s |\n", name, precision, ms, name ~ /^tutorial/ ? "" : sprintf("%.2f", ms / one), loss
        exit !same}' || { echo "the losses differ" >&2; exit 1; }
  done
done
