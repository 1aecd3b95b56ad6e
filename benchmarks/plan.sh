#!/usr/bin/env bash
# Compares the times that plan predicts for ten meshes of two ranks with those that pretrain_gpt takes, as threads, on one core each.
# The rates are those of plan --measure on other sizes, or given: MACHINE="--tflops ..." or MACHINE="--preset cpu". A time is the
# fastest of STEPS steps without the first three, in ROUNDS runs of each mesh in turn. Prints
# a table, and Kendall's tau of the orders.
#
#   ROUNDS=3 STEPS=10 benchmarks/plan.sh [FOLDER_OF_EXECUTABLES]     default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
rounds=${ROUNDS:-3} steps=${STEPS:-10}
machine=${MACHINE:-$("$bin/plan" --measure --gpus 2 --trainer "$bin/pretrain_gpt")}
echo "machine: $machine"
model="--num-layers 6 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --vocab-size 2048
  --attention-dropout 0 --hidden-dropout 0 --global-batch-size 8"
meshes='tp1-pp1-dp2-zero0-b4
tp1-pp1-dp2-zero1-b1
tp1-pp1-dp2-zero2-b1
tp1-pp1-dp2-zero3-b1
tp1-pp1-dp2-zero0-b4-recompute
tp2-pp1-dp1-zero0-b1
tp2-pp1-dp1-zero0-b4-sp
tp1-pp2-dp1-zero0-b1
tp1-pp2-dp1-zero0-b4
tp2-pp1-dp1-zero0-b1-sp-recompute'

field() { python3 -c 'import json, sys; print(json.load(sys.stdin)["meshes"][0][sys.argv[1]])' "$1"; }
for mesh in $meshes; do
  # shellcheck disable=SC2086
  "$bin/plan" $model --gpus 2 $machine --memory 64 --json --explain "$mesh" >"$mesh.json"
done
for ((round = 0; round < rounds; ++round)); do
  for mesh in $meshes; do
    # shellcheck disable=SC2046,SC2086
    OMP_NUM_THREADS=1 "$bin/pretrain_gpt" $model $(field flags <"$mesh.json") --local-ranks 2 --mock-data --lr 1e-4 --eval-iters 0 \
      --train-iters "$steps" --loss-csv run.csv </dev/null >run.log 2>&1 || { tail -5 run.log; exit 1; }
    tail -n +5 run.csv | cut -d, -f8 >>"$mesh.ms"
    rm -f run.csv run.jsonl
  done
done
for mesh in $meshes; do
  echo "$mesh $(field step <"$mesh.json") $(sort -g "$mesh.ms" | head -1)"
done | awk '
  { mesh[NR] = $1; ours[NR] = 1000 * $2; real[NR] = $3 }
  END {
    print "| mesh | ms predicted | ms measured | measured / predicted |\n|---|---|---|---|"
    for (i = 1; i <= NR; ++i) {
      printf "| %s | %.1f | %.1f | %.2f |\n", mesh[i], ours[i], real[i], real[i] / ours[i]
      for (j = 1; j < i; ++j) sum += ((ours[i] - ours[j]) * (real[i] - real[j]) > 0) ? 1 : -1
    }
    printf "Kendall tau %.2f\n", sum / (NR * (NR - 1) / 2)
  }'
