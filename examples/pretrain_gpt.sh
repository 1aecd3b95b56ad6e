#!/usr/bin/env bash
# Pretrains a GPT, and resumes from its newest checkpoint if there is one. Copy this file and change it.
#
#   DATA=corpus_text_document examples/pretrain_gpt.sh                      one process
#   DATA=... RANKS=8 TP=2 PP=2 ZERO=1 examples/pretrain_gpt.sh              tensor 2 x pipeline 2 x data 2
#   DATA=... examples/pretrain_gpt.sh --num-layers 4 --bf16                 more flags, which win over those here
#
# DATA is a .bin/.idx pair without the suffix, as preprocess_data writes it. CKPT is the folder of checkpoints. change_mesh.sh
# resumes from it on another mesh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${DATA:?a .bin/.idx pair without the suffix}"
CKPT=${CKPT:-runs/example}

model=(
  --num-layers 6 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256
  --attention-dropout 0.1 --hidden-dropout 0.1
)
parallel=(
  --tensor-model-parallel-size "${TP:-1}"    # ranks that share each layer; must divide the heads and the MLP columns
  --pipeline-model-parallel-size "${PP:-1}"  # stages of consecutive layers; need not divide the number of layers
  --zero-stage "${ZERO:-0}"                  # 1: each data parallel rank keeps a partition of the optimizer state
)
batch=(
  --micro-batch-size 2 --global-batch-size 24  # samples per step on any mesh; the number of micro-batches follows
  --train-iters 1000
)
optimizer=(
  --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.02
  --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0
)
data=(--data-path "$DATA" --tokenizer-type ByteLevelTokenizer --split 90,10,0)
output=(
  --save "$CKPT" --load "$CKPT" --save-interval 100  # starts at step 0 if there is no checkpoint yet
  --log-interval 10 --eval-interval 100 --eval-iters 10 --loss-csv "$CKPT.csv"
)

mkdir -p "$(dirname "$CKPT")"
exec tools/mpirun.sh "${RANKS:-1}" build/release/bin/pretrain_gpt \
  "${model[@]}" "${parallel[@]}" "${batch[@]}" "${optimizer[@]}" "${data[@]}" "${output[@]}" "$@"
