#!/usr/bin/env bash
# Turns a text into tokens and tokens into samples, whose order does not depend on the mesh.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs preprocess_data
token_bytes() { echo $(($(stat -c %s "$corpus.bin") / $(grep -o '[0-9]* tokens' "$out/preprocess.log" | cut -d ' ' -f 1))); }
ask 0 "How many bytes does the .bin take for a token, if there are 256 bytes and one token that ends a document?" token_bytes
next_sample() { awk -F, 'END {print $2}' "$out/first.csv"; }
ask 0 "With which sample, counted from 0, does the second part begin, after 30 steps of 8 samples on another mesh?" next_sample

cp LICENSE "$out/licence.txt"
quietly "$out/preprocess.log" "$bin/preprocess_data" --input "$out/licence.txt" --documents paragraph --output-prefix "$out/licence" \
    --tokenizer-type ByteLevelTokenizer --append-eod --count-eod
corpus=$out/licence_text_document
say "preprocess_data: $(grep -o '^[0-9]* documents' "$out/preprocess.log"), $(grep -o '[0-9]* tokens.*' "$out/preprocess.log")"

# The .bin holds only tokens, of two bytes here: one for each byte of the text, and 256 at the end of a document.
tokens() { od -An -v -tu2 -w2 "$corpus.bin"; }
text() { tokens | LC_ALL=C awk '$1 < 256 {printf "%c", $1}'; }
say "tokens 34 to 47:$(tokens | sed -n 34,47p | tr -s ' \n' ' ')"
say "as text: $(text | cut -c34-47 | head -1)"
cmp <(text | tr -d '[:space:]') <(tr -d '[:space:]' <LICENSE) || fail "the tokens are not the text"
say "ok: the tokens are the text, byte by byte"

data=(--data-path "$corpus" --tokenizer-type ByteLevelTokenizer --split 90,10,0)
eval=(--eval-iters 4 --eval-interval 1000)
train 1,1,1,0 one "${eval[@]}"
say "one process: loss $(loss one 1) at step 1, $(loss one 60) at step 60"
say "$(grep -o '^validation loss at the end[^:]*: [^ ]*' "$out/one.log")"

train 1,2,2,0 mesh --micro-batch-size 2 "${eval[@]}"
quietly "$out/plot.log" "$bin/plot_figure" data --output "$out/data.svg" "$out/one.log"
close one mesh 1e-5 "pp 2 x dp 2 with micro-batches of 2, on the same samples"
train 1,1,4,2 first --exit-interval 30 --save "$out/checkpoints"
train 2,1,1,0 rest --load "$out/checkpoints"
close one rest 1e-5 "30 steps on dp 4, then on tp 2: goes on with sample 241"
[[ $(awk -F, 'NR == 2 {print $1}' "$out/rest.csv") == 31 ]] || fail "the second part does not begin with step 31"

train 1,1,1,0 other --seed 5678
! "$bin/plot_loss" --tolerance 1e-2 "$out/one.csv" "$out/other.csv" >"$out/compare.log" 2>&1 ||
  fail "another seed gives the same curve"
say "ok: another --seed is another order: loss $(loss other 60) at step 60"
