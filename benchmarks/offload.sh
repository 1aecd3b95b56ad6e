#!/usr/bin/env bash
# benchmarks/offload.sh BIN [NVME_PATH]: measures a GPT-2 with 124M parameters on one rank, in bf16, with state in memory and on
# disk. Gives peak memory (VmHWM) and the fastest of ten steps. BIN is the folder of the executables.
set -euo pipefail
bin=$(cd "$1" && pwd)
nvme=$(cd "${2:-.}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# train ZERO FLAGS...: prints one row.
train() {
  "$(dirname "${BASH_SOURCE[0]}")/../tools/mpirun.sh" 1 "$bin/pretrain_gpt" \
      --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 64 --max-position-embeddings 64 \
      --mock-data --vocab-size 50257 --micro-batch-size 1 --global-batch-size 1 --lr 1e-4 --bf16 --train-iters 10 \
      --eval-iters 0 --zero-stage "$1" --loss-csv "$scratch/losses.csv" "${@:2}" >"$scratch/log"
  local fastest
  fastest=$(awk -F, 'NR > 2 {print $NF}' "$scratch/losses.csv" | sort -n | head -1)
  awk -v ms="$fastest" -v what="ZeRO $1 ${*:2:2} ${*:6:2}" \
      '/^done:/ {printf "%-60s %12.1f MiB %10.0f ms\n", what, $(NF - 1), ms}' "$scratch/log"
  rm "$scratch/losses.csv"
}

printf '%-60s %16s %13s\n' "124M parameters, bf16, 1 rank, 1 x 64 tokens" "peak memory" "fastest step"
train 1
train 1 --offload-optimizer nvme --nvme-path "$nvme"
train 3
train 3 --offload-optimizer nvme --nvme-path "$nvme"
train 3 --offload-optimizer nvme --nvme-path "$nvme" --offload-param nvme
