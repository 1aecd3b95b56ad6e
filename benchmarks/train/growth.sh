#!/usr/bin/env bash
# Compares a step's time with the model of docs/scaling.md, as layers, micro-batches and ranks grow. Some of the runs fit the
# model's constants; it predicts the others. Then applies the same formula to 175B parameters on 1024 GPUs, with assumed rates.
# One thread a rank, fp32, hidden 256, sequences of 128. Medians of ROUNDS runs' median step, without the first three steps.
#
#   ROUNDS=5 benchmarks/train/growth.sh [FOLDER_OF_EXECUTABLES]     default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
rounds=${ROUNDS:-5}

# NAME LAYERS MICRO-BATCHES-OF-THE-STEP RANKS MESH...
cases='fit 2 2 1
fit 2 8 1
fit 8 2 1
fit 8 8 1
fit 2 2 2 dp
fit 8 2 2 dp
fit 2 8 2 tp
fit 8 8 2 tp
fit 2 8 2 pp
check 4 4 1
check 16 4 1
check 4 8 2 dp
check 8 16 2 dp
check 4 4 2 tp
check 16 4 2 tp
check 8 2 2 pp
check 8 4 2 pp
check 8 8 2 pp
check 8 16 2 pp
check 16 8 2 pp'

run() { # LAYERS MICRO-BATCHES RANKS KIND: the median step, ms
  local mesh=()
  [[ $4 == tp ]] && mesh=(--tensor-model-parallel-size 2)
  [[ $4 == pp ]] && mesh=(--pipeline-model-parallel-size 2)
  OMP_NUM_THREADS=1 "$repository/tools/mpirun.sh" "$3" "$bin/pretrain_gpt" --mock-data --lr 1e-4 --lr-decay-style constant \
    --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --num-layers "$1" --hidden-size 256 --num-attention-heads 4 \
    --seq-length 128 --max-position-embeddings 128 --vocab-size 256 --micro-batch-size 1 --global-batch-size "$2" \
    --train-iters 14 --loss-csv run.csv "${mesh[@]}" </dev/null >run.log 2>&1 || { tail -5 run.log; exit 1; }
  tail -n +5 run.csv | cut -d, -f8 | median
}

for ((round = 0; round < rounds; ++round)); do
  while read -r _ layers micro ranks kind; do
    run "$layers" "$micro" "$ranks" "$kind" >>"ms.$layers.$micro.$ranks.$kind"
    echo >>"ms.$layers.$micro.$ranks.$kind"
  done <<<"$cases"
done
while read -r use layers micro ranks kind; do
  echo "$use $layers $micro ${kind:-one} $(median "ms.$layers.$micro.$ranks.$kind")"
done <<<"$cases" >measured

# a + b L is a micro-batch's milliseconds on one core; u + v L is the rest of the step, which is the optimizer. Ranks that
# compute at once share the memory bandwidth. dp adds f + g L to a step, its communication included. tp adds c to each layer of
# a micro-batch, and w to the step. A stage of pp takes half the time, and k more for each micro-batch.
awk '
  { use[NR] = $1; L[NR] = $2; m[NR] = $3; kind[NR] = $4; ms[NR] = $5; t[$4, $2, $3] = $5 }
  function one(L, m) { return m * (a + b * L) + u + v * L }
  function predicted(kind, L, m) {
    if (kind == "one") return one(L, m)
    if (kind == "dp") return one(L, m / 2) + f + g * L
    if (kind == "tp") return m * (a + b * L / 2 + c * L) + (u + v * L) / 2 + w
    return (m + 1) * ((a + b * L) / 2 + k) + (u + v * L) / 2
  }
  END {
    at2 = (t["one", 2, 8] - t["one", 2, 2]) / 6; at8 = (t["one", 8, 8] - t["one", 8, 2]) / 6
    b = (at8 - at2) / 6; a = at2 - 2 * b
    v = (t["one", 8, 2] - 2 * at8 - t["one", 2, 2] + 2 * at2) / 6; u = t["one", 2, 2] - 2 * at2 - 2 * v
    over2 = t["dp", 2, 2] - one(2, 1); over8 = t["dp", 8, 2] - one(8, 1)
    g = (over8 - over2) / 6; f = over2 - 2 * g
    over2 = t["tp", 2, 8] - predicted("tp", 2, 8); over8 = t["tp", 8, 8] - predicted("tp", 8, 8)
    c = (over8 - over2) / 6 / 8; w = over2 - 2 * 8 * c
    k = (t["pp", 2, 8] - predicted("pp", 2, 8)) / 9
    printf "a %.2f  b %.2f  u %.2f  v %.2f  dp: f %.2f g %.2f  tp: c %.2f w %.2f  pp: k %.2f (ms)\n\n", a, b, u, v, f, g, c, w, k
    print "| mesh | layers | micro-batches | bubble | ms predicted | ms measured | measured / predicted |\n|---|---|---|---|---|---|---|"
    for (i = 1; i <= NR; ++i) {
      p = predicted(kind[i], L[i], m[i])
      if (use[i] == "check")
        printf "| %s | %d | %d | %s | %.1f | %.1f | %.2f |\n", kind[i] == "one" ? "1 rank" : kind[i] " 2", L[i], m[i],
          kind[i] == "pp" ? sprintf("%.2f", 1 / (m[i] + 1)) : "", p, ms[i], ms[i] / p
    }
  }' measured

# GPT-3 (96 layers of 12288, sequences of 2048, vocabulary 51200) at a batch of 1536 on 1024 GPUs, with tensor 8 x pipeline 8 x
# data 16, micro-batches of 1 and ZeRO 1. The rates are a GPU's flops, the share of it that large products reach, and its
# bytes/s on the links within and between nodes and in its memory. Nothing overlaps.
printf '\n| 175B, 1024 GPUs | compute | tp | pp | bubble | dp | optimizer | step, s | tokens/s | TFLOP/s a GPU, recomputed too | of the peak |\n'
echo '|---|---|---|---|---|---|---|---|---|---|---|'
awk -v OFMT=%.3g 'function row(name, recompute, peak, share, nvlink, fabric, hbm) {
    L = 96; h = 12288; s = 2048; V = 51200; B = 1536; t = 8; p = 8; d = 16; m = B / d
    N = 12 * L * h * h + V * h
    flops = (recompute ? 96 : 72) * B * s * L * h * h * (1 + s / (6 * h)) + 6 * B * s * h * V
    compute = flops / (t * p * d) / (peak * share)
    tp = m * L / p * (recompute ? 6 : 4) * 2 * (t - 1) / t * 2 * s * h / nvlink
    pp = m * 2 * 2 * s * h / fabric
    bubble = (compute + tp + pp) * (p - 1) / m
    dp = (d - 1) / d * (4 + 2) * N / (t * p) / fabric
    adam = N / (t * p * d) * 30 / hbm
    step = compute + tp + pp + bubble + dp + adam
    rate = flops / (t * p * d) / step
    printf "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.3f | %.1f | %d | %.0f | %.0f %% |\n", name, compute, tp, pp, bubble, dp,
      adam, step, B * s / step, rate / 1e12, 100 * rate / peak
  }
  BEGIN {
    row("A100, activations recomputed", 1, 312e12, 0.6, 240e9, 20e9, 1.6e12)
    row("H100", 0, 989e12, 0.6, 360e9, 40e9, 2.7e12)
  }'
