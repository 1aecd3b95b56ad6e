#!/usr/bin/env bash
# Measures what a checkpoint of thousands of ranks costs: 291 small tensors at ZeRO 3, two files a rank. Prints seconds (median of
# RUNS, 3) and peak memory of each tool, and of loads on 1 rank and on 8. Give two folders of executables to compare: they take turns.
#
#   benchmarks/many_ranks.sh [FOLDER_OF_EXECUTABLES [ANOTHER]]     default: build/release/bin. RANKS (4096), LOAD_RANKS (512)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export OMP_NUM_THREADS=1
folders=("$bin" ${2:+"$(cd "$repository" && realpath "$2")"})
ranks=${RANKS:-4096} load_ranks=${LOAD_RANKS:-512} runs=${RUNS:-3}

model=(--num-layers 24 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16
       --use-rotary-position-embeddings --mock-data --vocab-size 257 --micro-batch-size 1 --global-batch-size 8 --lr 1e-4
       --lr-decay-iters 100 --eval-iters 0 --zero-stage 3)

# measured COMMAND...: prints its seconds and the MiB of its peak.
measured() {
  python3 -c '
import resource, subprocess, sys, time
started = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
seconds = time.monotonic() - started
if done.returncode: sys.exit(done.stderr.decode()[-2000:])
print("%.4g %d" % (seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024))' "$@"
}

# row WHAT PROGRAM FLAGS...
row() {
  local i k
  rm -f times.* peaks.*
  for ((i = 0; i < runs; ++i)); do
    for k in "${!folders[@]}"; do
      rm -rf out
      read -r seconds mib < <(measured "${folders[k]}/$2" "${@:3}")
      echo "$seconds" >>"times.$k"
      echo "$mib" >>"peaks.$k"
    done
  done
  printf '| %s ' "$1"
  for k in "${!folders[@]}"; do printf '| %s | %s ' "$(median "times.$k")" "$(sort -n "peaks.$k" | tail -1)"; done
  printf '|\n'
}

"$bin/pretrain_gpt" --local-ranks 2 "${model[@]}" --train-iters 1 --save small >log 2>&1 || { tail -5 log >&2; exit 1; }
for n in $ranks $load_ranks; do
  "$bin/ds_reshard" --input_folder small/global_step1 --output_folder "dp$n/global_step1" --target "dp=$n" >log 2>&1 || { tail -5 log >&2; exit 1; }
done
from=dp$ranks/global_step1

printf '| %s files |' "$(ls "$from" | grep -c states.pt)"
for folder in "${folders[@]}"; do printf ' s | MiB |'; done
printf '\n|---|'
for folder in "${folders[@]}"; do printf -- '---|---|'; done
printf '\n'
row inspect ckpt inspect "$from"
row verify ckpt verify "$from"
row ds_to_universal ds_to_universal --input_folder "$from" --output_folder out/step1
row "ds_reshard to dp 2" ds_reshard --input_folder "$from" --output_folder out/step1 --target dp=2
row "a load on 1 rank" pretrain_gpt "${model[@]}" --train-iters 1 --load "dp$ranks"
row "a load on 8 ranks, from $(ls "dp$load_ranks/global_step1" | grep -c states.pt) files" \
  pretrain_gpt --local-ranks 8 "${model[@]}" --train-iters 1 --load "dp$load_ranks"
