#!/usr/bin/env bash
# Trains a GPT in about three minutes, on one process, and lets it write:
#
#   tutorials/read_it.sh                     after the King James Bible
#   CORPUS=your.txt tutorials/read_it.sh     after a text of yours
#
# 1. Installs the missing packages and builds, as quickstart.sh does.
# 2. Learns a vocabulary of 2048 tokens from the text (tutorials/learn_bpe.py), so that the model writes pieces of words instead
#    of bytes.
# 3. Trains four layers on all cores, at most four, and prints what the model writes.
#
# Everything is written to runs/read_it/, made anew each time. STEPS=2000 trains longer and writes better.
tutorial=read_it
vocabulary=2048
steps=${STEPS:-800}
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores < 4 ? cores : 4))}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

model=(--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
       --use-rotary-position-embeddings --init-method-std 0.05 --attention-dropout 0 --hidden-dropout 0)
recipe=(--global-batch-size 12 --train-iters "$steps" --lr 6e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 30
        --weight-decay 0.1 --adam-beta2 0.95 --seed 1234)
log=(--log-interval $(((steps + 15) / 16)) --eval-interval 100000 --eval-iters 8)

prepare
step "Train $steps steps on one process, $OMP_NUM_THREADS threads: about three minutes on two cores"
train 1,1,1,0 run --micro-batch-size 12 --save "$out/checkpoints"
spent "training"

step "Read it: texts of 150 tokens, at temperature 0.7"
beginnings=("In the beginning" "And God said" "The LORD is my")
[[ -z $corpus ]] || beginnings=("$(grep -m 1 . "$out/text.txt" | cut -d' ' -f1-3)")
for beginning in "${beginnings[@]}"; do
  "$bin/generate" --load "$out/checkpoints" --num-tokens-to-generate 150 --temperature 0.7 --top_p 0.9 --prompts "$beginning" \
      2>"$out/generate.log" || { cat "$out/generate.log" >&2; fail "no text"; }
  echo
done
spent "writing"
echo "time: $times"
printf 'more: %s\n' "$bin/generate --load $out/checkpoints --prompts '${beginnings[0]}' --num-tokens-to-generate 300"
echo "next: tutorials/quickstart.sh trains on eight ranks, and resumes on six other meshes"
