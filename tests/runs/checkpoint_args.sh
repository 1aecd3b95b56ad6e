#!/usr/bin/env bash
# --use-checkpoint-args: the model and the tokenizer come from the checkpoint, where no flag says otherwise.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for i in $(seq 1 60); do echo "{\"text\": \"line $i of a text, with $((i * i)) in it\"}"; done >text.jsonl
fixtures=$here/../fixtures/data
tokenizer=(--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "$fixtures/sentencepiece.model")
"$bin/preprocess_data" --input text.jsonl --output-prefix text "${tokenizer[@]}" --append-eod >preprocess.log || fail "$(cat preprocess.log)"
flags=${model[*]}
shape=(${flags%% --mock-data*} --swiglu --use-rotary-position-embeddings --rotary-percent 0.4 --disable-bias-linear
       --layernorm-epsilon 3e-6 --num-key-value-heads 2 --reset-attention-mask)
model=(--micro-batch-size 1 --global-batch-size 4 --lr 3e-4 --lr-decay-style constant --eval-iters 0 --train-iters 8
       --data-path text_text_document --split 1)

run 1,1,2,1 one.csv "${shape[@]}" "${tokenizer[@]}" --save ckpt --save-interval 4
for way in "" --universal-checkpoint; do
  run 1,2,1,0 other.csv --use-checkpoint-args --load ckpt --load-tag global_step4 $way
  close one.csv other.csv 1e-5 5 "a model from its checkpoint $way"
  grep -q -- '--use-checkpoint-args: flags that the command line lacks are those of' log || fail "$(cat log)"
  grep -q -- '  --rotary-percent 0.4' log || fail "the start does not show them: $(cat log)"
  [[ $way ]] || convert ckpt global_step4
  rm other.csv
done
# A flag of the command line counts, and a shape that the weights lack is refused.
run 1,1,1,0 other.csv --use-checkpoint-args --load ckpt --hidden-dropout 0
grep -q -- '  --hidden-dropout 0$' log || fail "$(cat log)"
! train 1,1,1,0 other.csv --use-checkpoint-args --load ckpt --num-layers 4 >log 2>&1 || fail "took another shape"
grep -q 'the checkpoint was made with --num-layers 5, this run has 4; give --num-layers 5' log || fail "$(cat log)"
# A first run takes its flags.
run 1,1,1,0 first.csv "${shape[@]}" "${tokenizer[@]}" --use-checkpoint-args --load new --save new --exit-interval 2
grep -q -- '--use-checkpoint-args: --load new holds no checkpoint yet; the flags hold' log || fail "$(cat log)"
close <(head -3 one.csv) first.csv 1e-5 1 "a first run with --use-checkpoint-args"
run 1,1,1,0 first.csv --use-checkpoint-args --load new --save new
echo "ok: checkpoint args"
