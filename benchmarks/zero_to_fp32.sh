#!/usr/bin/env bash
# Measures zero_to_fp32 on a GPT-2 of 124M parameters that 8 ranks (tp 2 x pp 2 x dp 2, ZeRO 1, bf16) have saved. Gives its time
# and peak memory, which must stay within 64 MiB plus the largest tensor. Every export is compared bit for bit with the masters,
# which a gatherer in plain Python reads. Needs 8 GB of memory and 5 GB of disk.
#
#   benchmarks/zero_to_fp32.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

OMP_NUM_THREADS=1 "$repository/tools/mpirun.sh" 8 "$bin/pretrain_gpt" --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
  --seq-length 64 --max-position-embeddings 64 --mock-data --vocab-size 50257 --micro-batch-size 1 --global-batch-size 4 \
  --lr 1e-4 --lr-decay-iters 100 --train-iters 2 --eval-iters 0 --bf16 --zero-stage 1 --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 --save checkpoints >train.log || { tail -5 train.log; exit 1; }
"$bin/ds_to_universal" --input_folder checkpoints/global_step2 --output_folder checkpoints/global_step2_universal >/dev/null 2>&1

limit=$((64 + (50257 * 768 * 4 >> 20)))
echo "| from | written as | files | time, s | rate | peak memory, MiB (limit $limit) | differences from the masters |"
echo "|---|---|---|---|---|---|---|"
# export_one FROM WHAT FLAGS...
export_one() {
  local from=$1 what=$2
  shift 2
  rm -rf weights
  "$bin/zero_to_fp32" "checkpoints/$from" weights "$@" >log 2>&1 || { cat log; exit 1; }
  python3 "$repository/tests/runs/compare_export.py" checkpoints/global_step2 weights >compared || { cat compared; exit 1; }
  awk -v from="$from" -v what="$what" -v same="$(sed "s/.*, \([0-9]*\) .*/\1/" compared)" -v limit=$limit '
    /peak memory/ {match($0, /in [0-9]+ file/); files = substr($0, RSTART + 3, RLENGTH - 8)
      match($0, /in [0-9.]+ s/); time = substr($0, RSTART + 3, RLENGTH - 5)
      match($0, /\([0-9.]+ [MG]B\/s/); rate = substr($0, RSTART + 1, RLENGTH - 1)
      match($0, /memory [0-9]+/); peak = substr($0, RSTART + 7) + 0
      printf "| %s | %s | %s | %s | %s | %d | %s |\n", from, what, files, time, rate, peak, same}
    END {exit !(peak > 0 && peak <= limit)}' log || { cat log; exit 1; }
}
for from in global_step2 global_step2_universal; do
  export_one $from ".bin" --max_shard_size 5GB
  export_one $from ".bin, parts of 100MB" --max_shard_size 100MB
  export_one $from "safetensors" --safe_serialization
  export_one $from "safetensors, parts of 100MB" --safe_serialization --max_shard_size 100MB
done
