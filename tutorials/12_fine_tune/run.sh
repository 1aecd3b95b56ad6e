#!/usr/bin/env bash
# Starts a run from a trained model, directly and through a Hugging Face folder.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs preprocess_data hf_convert ckpt
begin() { awk '$1 == "K1" {print $3}' "$out/rows.txt"; }
ask 0 "At which of the 192 rows of Q, K and V does K of the second of 4 heads begin here, counted from 0?" begin
ask 0.2 "With which loss does the fine-tuned run begin, if the run on a similar text ended with 3.2?" 'loss tuned 1'

# corpus NAME FILE FLAGS...: turns the bytes of FILE into tokens, on which the next runs train.
corpus() {
  quietly "$out/$1.log" "$bin/preprocess_data" --input "$2" "${@:3}" --output-prefix "$out/$1" \
      --tokenizer-type ByteLevelTokenizer --append-eod --count-eod
  data=(--data-path "$out/$1_text_document" --tokenizer-type ByteLevelTokenizer --split 100,0,0)
}
corpus licences tests/fixtures/data/text.jsonl
train 2,2,1,0 licences --save "$out/licences"
say "trained on licences, tp 2 x pp 2: loss $(loss licences 1) at step 1, $(loss licences 60) at step 60"

corpus rights tutorials/12_fine_tune/bill_of_rights.txt --documents paragraph
recipe+=(--train-iters 20)
train 1,1,2,1 scratch
train 1,1,2,1 tuned --load "$out/licences" --finetune
for run in scratch tuned; do say "$run on the Bill of Rights: loss $(loss $run 1) at step 1, $(loss $run 20) at step 20"; done
below() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a < b)}' || fail "$1 is not below $2"; }
below "$(loss tuned 1)" "$(awk -v loss="$(loss scratch 1)" 'BEGIN {print loss - 1}')"
below "$(loss tuned 20)" "$(loss scratch 20)"
say "ok: the trained weights start lower by 1, and end lower"

quietly "$out/export.log" "$bin/hf_convert" export "$out/licences" "$out/hugging_face"
say "hf_convert export: $(ls "$out/hugging_face" | xargs), $(grep -o '"model_type": "[^"]*"' "$out/hugging_face/config.json")"
quietly "$out/import.log" "$bin/hf_convert" import "$out/hugging_face" "$out/imported"
quietly "$out/again.log" "$bin/hf_convert" export "$out/imported" "$out/again" --config "$out/hugging_face/config.json"
cmp "$out/hugging_face/model.safetensors" "$out/again/model.safetensors" || fail "the weights are not the same"
say "ok: exported, imported and exported again: model.safetensors is the same, byte by byte"
tutorials/12_fine_tune/rows.py "$out/imported/global_step0_universal" "$out/hugging_face" >"$out/rows.txt" ||
  fail "the rows are not the same"
{ echo "GPT-2: $(sort -n -k 2 "$out/rows.txt" | cut -d ' ' -f 1 | xargs)"
  echo "~"
  echo "here: $(sort -n -k 3 "$out/rows.txt" | cut -d ' ' -f 1 | xargs)"
  echo "tp 2: T0*6 T1*6"
  printf '%s\n' "Q = queries" "K = keys" "V = values" "T = tensor parallel rank"; } >"$out/cells.txt"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/rows.svg" \
    --title "The rows of Q, K and V, with the numbers of the heads" "$out/cells.txt"
say "row of K of head 1: $(begin) here, $(awk '$1 == "K1" {print $2}' "$out/rows.txt") in GPT-2's order"
train 1,1,2,1 imported --load "$out/imported" --universal-checkpoint --finetune
bitwise tuned imported "fine-tuned from the import against from the checkpoint"
