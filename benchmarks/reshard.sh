#!/usr/bin/env bash
# Measures ds_reshard beside ds_to_universal on the same checkpoint of GPT-2 after one micro-batch: medians of 5 runs, which
# alternate. The source is in the page cache; both times include the sync. Peak memory is VmHWM. Needs 12 GB of memory and, at
# 1.3B, 55 GB of disk.
#
#   benchmarks/reshard.sh [FOLDER_OF_EXECUTABLES [124M|1.3B]...]     default: build/release/bin 124M
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export OMP_NUM_THREADS=1
runs=5 in=checkpoints/global_step1

# train LAYERS HIDDEN RANKS FLAGS...
train() {
  rm -rf checkpoints
  "$bin/pretrain_gpt" --num-layers "$1" --hidden-size "$2" --num-attention-heads 16 --local-ranks "$3" --seq-length 32 \
      --max-position-embeddings 1024 --mock-data --vocab-size 50257 --micro-batch-size 1 --global-batch-size 4 --lr 1e-4 \
      --lr-decay-iters 100 --train-iters 1 --eval-iters 0 --bf16 --save checkpoints "${@:4}" >log || { tail -5 log; exit 1; }
}

# seconds COMMAND...: its time; its output goes to `log`.
seconds() {
  local started=$EPOCHREALTIME
  "$@" >log 2>&1 || { cat log >&2; exit 1; }
  awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}'
}
fresh() { rm -rf universal cut; sync -f .; cat $in/* >/dev/null; }

# row WHAT TARGET
row() {
  rm -f peaks convert.times reshard.times
  for ((i = 0; i < runs; ++i)); do
    fresh
    seconds "$bin/ds_to_universal" --input_folder $in --output_folder universal/step1 >>convert.times
    fresh
    seconds "$bin/ds_reshard" --input_folder $in --output_folder cut/step1 --target "$2" >>reshard.times
    sed -n 's/.*peak memory \([0-9]*\) MiB.*/\1/p' log >>peaks
  done
  awk -v what="$1" -v target="$2" -v gb="$(du -sb cut | cut -f1)" -v ours="$(median reshard.times)" \
    -v convert="$(median convert.times)" -v peak="$(sort -n peaks | tail -1)" \
    'BEGIN {printf "| %s | %s | %.2f | %s | %s | %.2f | %s |\n", what, target, gb / 1e9, ours, convert, ours / convert, peak}'
}

echo "| checkpoint | target | GB written | ds_reshard, s | ds_to_universal, s | ratio | peak, MiB |"
echo "|---|---|---|---|---|---|---|"
shift $(($# > 0 ? 1 : 0))
for size in "${@:-124M}"; do
  case $size in
    124M)
      train 12 768 2 --zero-stage 1
      row "124M, ZeRO 1, dp 2" dp=3
      row "124M, ZeRO 1, dp 2" dp=3,zero=3
      row "124M, ZeRO 1, dp 2" tp=2,dp=2
      train 12 768 4 --zero-stage 3
      row "124M, ZeRO 3, dp 4" dp=3
      ;;
    1.3B)
      mkdir nvme
      train 24 2048 2 --zero-stage 2 --offload-optimizer nvme --nvme-path nvme
      rm -rf nvme
      row "1.3B, ZeRO 2, dp 2" dp=3
      row "1.3B, ZeRO 2, dp 2" tp=2,dp=2
      ;;
    *) echo "$size: expected 124M or 1.3B" >&2; exit 2 ;;
  esac
done
