#!/usr/bin/env bash
# Blends two corpora through a SentencePiece model. A run that stops resumes bit-identically. Another mesh has the same samples,
# so the same losses.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start
fixtures=$here/../fixtures/data

tokenizer=(--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "$fixtures/sentencepiece.model")
head -40 "$fixtures/text.jsonl" >a.jsonl
tail -43 "$fixtures/text.jsonl" >b.jsonl
for name in a b; do
  "$bin/preprocess_data" --input $name.jsonl --output-prefix $name "${tokenizer[@]}" --append-eod --count-eod >preprocess.log || fail "$(cat preprocess.log)"
done
data=(--data-path 0.7 a_text_document 0.3 b_text_document --split 90,10,0 --eval-iters 2)
flags=${model[*]}
model=(${flags/--mock-data --vocab-size 257/})
model+=("${tokenizer[@]}" --train-iters 16)

train 1,1,2,1 whole.csv "${data[@]}" >whole.log || fail "$(tail -5 whole.log)"
grep -q 'validation loss' whole.log || fail "no validation: $(cat whole.log)"
train 1,1,2,1 parts.csv "${data[@]}" --save ckpt --exit-interval 8 >parts.log || fail "$(tail -5 parts.log)"
train 1,1,2,1 parts.csv "${data[@]}" --load ckpt >parts.log || fail "$(tail -5 parts.log)"
same whole.csv parts.csv "a blend, stopped and resumed"
train 1,2,1,0 other.csv "${data[@]}" >other.log || fail "$(tail -5 other.log)"
"$bin/plot_loss" --tolerance 1e-4 whole.csv other.csv >plot.log 2>&1 || fail "a blend on another mesh: $(cat plot.log)"

# The order of the data is the checkpoint's. Other data are refused, or begin at the same count of samples.
refused() {  # WORDS FLAGS...
  ! train 1,1,1,0 /dev/null "${@:2}" --load ckpt >refused.log 2>&1 || fail "accepted: ${*:2}"
  grep -qF -e "$1" refused.log || fail "no '$1': $(tail -5 refused.log)"
}
refused "--data-path: checkpoint 0.7" "${data[@]/0.7/0.2}"
refused "--split: checkpoint documents for training 0 to 36" "${data[@]/90,10,0/80,20,0}"
refused "--seed: checkpoint 1234, this run 7" "${data[@]}" --seed 7
refused "--allow-other-data to go on at sample 96" "${data[@]}" --seed 7
train 1,1,1,0 /dev/null "${data[@]}" --seed 7 --load ckpt --allow-other-data >other.log || fail "$(tail -5 other.log)"
grep -q "the run goes on at sample 96 of another order" other.log || fail "$(cat other.log)"

# A run that is extended keeps its order.
train 1,2,1,0 longer.csv "${data[@]}" --train-iters 24 --lr-decay-iters 16 --load ckpt >longer.log || fail "$(tail -5 longer.log)"
[[ $(tail -1 longer.csv | cut -d, -f1,2) == 24,288 ]] || fail "$(tail -1 longer.csv)"
head -9 longer.csv >to-16.csv
close whole.csv to-16.csv 1e-4 9 "an extended run"

# Other weights give other data.
train 1,2,1,0 other.csv "${data[@]/0.7/0.2}" >other.log || fail "$(tail -5 other.log)"
! "$bin/plot_loss" --tolerance 1e-4 whole.csv other.csv >plot.log 2>&1 || fail "the weights change nothing"

if train 1,1,1,0 /dev/null --data-path a_text_document b_text_document --train-iters 100000 --split 1 >once.log 2>&1; then fail "a run longer than its data"; fi
grep -q 'train data: --data-path without weights reads every data set once' once.log || fail "$(cat once.log)"
eval=("${model[@]/--eval-iters/--log-interval}")
launch 1 "${eval[@]}" --train-iters 2 --lr-decay-iters 8 --data-path a_text_document --split 100,0,0 >split.log 2>&1 || fail "$(tail -5 split.log)"
grep -q "100,0,0. leaves none of 40 documents to validate on: the run trains without validation" split.log || fail "$(cat split.log)"
if train 1,1,2,1 /dev/null --data-path a_text_document --split 100,0,0 --eval-iters 2 >split.log 2>&1; then fail "no document to validate on"; fi
grep -q -e '--split "100,0,0" leaves none of 40 documents to validate on, but --eval-iters (2) asks' split.log || fail "$(cat split.log)"
# Tokens of another vocabulary are refused.
others=(${flags/--mock-data --vocab-size 257/} --tokenizer-type NullTokenizer --vocab-size 40 --train-iters 2 --lr-decay-iters 8)
if launch 1 "${others[@]}" --data-path a_text_document --split 1 >tokens.log 2>&1; then fail "a run on tokens outside its vocabulary"; fi
grep -q 'sample 0 has token [0-9]*, the vocabulary has 40; see --tokenizer-type' tokens.log || fail "$(cat tokens.log)"
echo "ok: a blend on another mesh, and what it refuses"
