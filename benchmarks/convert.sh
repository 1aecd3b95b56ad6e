#!/usr/bin/env bash
# Measures ds_to_universal on checkpoints of GPT-2 after one micro-batch of 32 tokens. Gives the median time of 5 runs, which
# alternate with `cp` of the output and with DeepSpeed's script. The source is in the page cache. Our time and cp's include the
# sync. DeepSpeed's uses the fastest of three worker settings, and its sync is timed apart. So ours also runs with a preloaded
# library that makes sync's calls do nothing. Peak memory is VmHWM. Needs 12 GB of memory and, at 1.3B, 50 GB of disk.
#
#   [DEEPSPEED=PYTHON] benchmarks/convert.sh [FOLDER_OF_EXECUTABLES [124M|0.7B|1.3B]...]     default: build/release/bin 124M
#
# PYTHON has DeepSpeed and torch, like the venv of tests/interop/install.sh. The comparison is left out without PYTHON, and
# above 124M unless DEEPSPEED_LARGE is set.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu
runs=5 in=checkpoints/global_step1 out=universal/step1

# train LAYERS HIDDEN RANKS FLAGS...
train() {
  rm -rf checkpoints
  "$repository/tools/mpirun.sh" "$3" "$bin/pretrain_gpt" --num-layers "$1" --hidden-size "$2" --num-attention-heads 16 \
    --seq-length 32 --max-position-embeddings 1024 --mock-data --vocab-size 50257 --micro-batch-size 1 --global-batch-size 4 \
    --lr 1e-4 --lr-decay-iters 100 --train-iters 1 --eval-iters 0 --bf16 --save checkpoints "${@:4}" >log || { tail -5 log; exit 1; }
}

# seconds COMMAND...: its time; its output goes to `log`.
seconds() {
  local started=$EPOCHREALTIME
  "$@" >log 2>&1 || { cat log >&2; exit 1; }
  awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}'
}
ours() { "$bin/ds_to_universal" --input_folder $in --output_folder $out; }
cc -shared -fPIC -o no_sync.so -x c - <<<'int fsync(int f) { return 0; } int fdatasync(int f) { return 0; } int syncfs(int f) { return 0; }'
unsynced() { LD_PRELOAD=$PWD/no_sync.so ours; }
copy() { cp -r --preserve=links --reflink=never universal copied && sync -f copied; }
theirs() { # EXTRACT_WORKERS MERGE_WORKERS
  "$DEEPSPEED" -m deepspeed.checkpoint.ds_to_universal --input_folder $in --output_folder theirs/step1 \
    --num_extract_workers "$1" --num_merge_workers "$2"
}
fresh() { rm -rf "$@"; sync -f .; cat $in/* >/dev/null; }

# row WHAT PEER: PEER is 1 to run DeepSpeed too.
row() {
  local setting best=() peer=- times=- time
  rm -f peaks ours.times unsynced.times copy.times theirs.times theirs.sync settings
  if [[ $2 == 1 ]]; then
    for setting in "1 1" "2 2" "4 2"; do
      fresh theirs
      time=$(seconds theirs $setting)
      echo "$time $setting" >>settings
    done
    read -r _ best[0] best[1] < <(sort -n settings)
  fi
  for ((i = 0; i < runs; ++i)); do
    fresh universal
    seconds ours >>ours.times
    sed -n 's/.*peak memory \([0-9]*\) MiB.*/\1/p' log >>peaks
    fresh universal
    seconds unsynced >>unsynced.times
    fresh copied
    cat universal/*/*.pt universal/*/zero/*/*.pt >/dev/null
    seconds copy >>copy.times
    rm -rf copied
    if [[ $2 == 1 ]]; then
      fresh theirs
      seconds theirs "${best[@]}" >>theirs.times
      seconds sync -f theirs >>theirs.sync
    fi
  done
  if [[ $2 == 1 ]]; then
    peer="$(median theirs.times) + $(median theirs.sync) (${best[*]})"
    times=$(awk -v a="$(median theirs.times)" -v s="$(median theirs.sync)" -v b="$(median ours.times)" \
      -v u="$(median unsynced.times)" 'BEGIN {printf "%.1f, %.1f", a / u, (a + s) / b}')
  fi
  awk -v what="$1" -v gb="$(du -sb universal | cut -f1)" -v ours="$(median ours.times)" \
    -v unsynced="$(median unsynced.times)" -v copy="$(median copy.times)" \
    -v peer="$peer" -v times="$times" -v peak="$(sort -n peaks | tail -1)" 'BEGIN {printf "| %s | %.2f | %s | %s | %s | %.2f | %s | %s | %s |\n",
      what, gb / 1e9, ours, unsynced, copy, ours / copy, peer, times, peak; exit !(peak > 0 && peak <= 64)}'
}

echo "ds_to_universal, zero_to_fp32: $(stat -c %s "$bin/ds_to_universal" "$bin/zero_to_fp32" | paste -sd' ') bytes;" \
  "--help in $(seconds "$bin/ds_to_universal" --help) s"
echo "| checkpoint | GB written | s | s without sync | cp, s | s / cp | DeepSpeed + sync, s (workers) | times as fast, neither syncing, both | peak, MiB (limit 64) |"
echo "|---|---|---|---|---|---|---|---|---|"
shift $(($# > 0 ? 1 : 0))
for size in "${@:-124M}"; do
  large=${DEEPSPEED_LARGE:+1}
  case $size in
    124M)
      peer=${DEEPSPEED:+1}
      train 12 768 2 --zero-stage 1
      row "124M, ZeRO 1, dp 2" "$peer"
      train 12 768 4 --zero-stage 3
      row "124M, ZeRO 3, dp 4" "$peer"
      train 12 768 8 --zero-stage 1 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
      row "124M, ZeRO 1, tp 2, pp 2, dp 2" "$peer"
      ;;
    0.7B | 1.3B)
      train 24 $([[ $size == 0.7B ]] && echo 1536 || echo 2048) 2 --zero-stage 3 --offload-optimizer nvme --nvme-path .
      row "$size, ZeRO 3, dp 2" "${DEEPSPEED:+$large}"
      ;;
    *) echo "convert.sh: $size is not 124M, 0.7B or 1.3B" >&2; exit 2 ;;
  esac
done
