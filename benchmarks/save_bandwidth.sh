#!/usr/bin/env bash
# Compares the speed of saves with dd on the same disk: a GPT-2 of 124M parameters, ZeRO 1. dd uses the same block size (2 MiB)
# and fsync, through the page cache and past it, in turns. For several ranks as many dd run at once, each with as many bytes as
# its rank writes. Their data are random and come from memory, as a disk may be quicker with zeros. Medians. Needs 2 GB of
# /dev/shm.
#
#   ROUNDS=5 benchmarks/save_bandwidth.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
rounds=${ROUNDS:-5} random=/dev/shm/save_bandwidth.$$
trap 'rm -rf "$scratch" "$random"' EXIT
head -c 1900M /dev/urandom >"$random"

gbps() { awk -v bytes="$1" -v a="$2" -v b="$3" 'BEGIN {printf "%.2f\n", bytes / 1e9 / (b - a)}'; }

save() {  # RANKS: GB/s of one save
  rm -rf checkpoints
  OMP_NUM_THREADS=1 "$repository/tools/mpirun.sh" "$1" "$bin/pretrain_gpt" --num-layers 12 --hidden-size 768 \
      --num-attention-heads 12 --seq-length 64 --max-position-embeddings 64 --mock-data --vocab-size 50257 --micro-batch-size 1 \
      --lr 1e-4 --lr-decay-style constant --eval-iters 0 --zero-stage 1 --train-iters 1 --save checkpoints \
      >save.log 2>&1 || { tail -5 save.log; exit 1; }
  sed -n 's|^saved .* at \([0-9.]*\) \([MG]\)B/s.*|\1 \2|p' save.log | awk '{print $2 == "M" ? $1 / 1000 : $1}'
}
dds() {  # FLAGS BYTES...: total GB/s of one dd for each BYTES, all at once
  local flags=$1 start sum=0 i=0 bytes
  shift
  start=$EPOCHREALTIME
  for bytes in "$@"; do
    # shellcheck disable=SC2086
    dd if="$random" of="dd$((i += 1))" bs=2M count=$((bytes >> 21)) $flags 2>dd.log &
    ((sum += bytes >> 21 << 21))
  done
  wait
  gbps "$sum" "$start" "$EPOCHREALTIME"
  rm -f dd?
}
echo "| ranks | save, GB/s | of each rank | dd conv=fsync | dd oflag=direct conv=fsync | save / the better dd |"
echo "|---|---|---|---|---|---|"
for ranks in 1 2; do
  rm -f saved cached direct
  for ((round = 0; round < rounds; ++round)); do
    save "$ranks" >>saved
    mapfile -t bytes < <(stat -c %s checkpoints/global_step*/*optim_states.pt)
    model=$(stat -c %s checkpoints/global_step*/mp_rank_00_model_states.pt)
    for ((i = 0; i < ranks; ++i)); do bytes[i]=$((bytes[i] + model / ranks)); done
    rm -rf checkpoints
    dds conv=fsync "${bytes[@]}" >>cached
    dds 'oflag=direct conv=fsync' "${bytes[@]}" >>direct
  done
  awk -v n="$ranks" -v save="$(median saved)" -v cached="$(median cached)" -v direct="$(median direct)" 'BEGIN {
    printf "| %d | %.2f | %.2f | %.2f | %.2f | %.2f |\n", n, save, save / n, cached, direct, save / (cached > direct ? cached : direct)}'
done
