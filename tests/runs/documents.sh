#!/usr/bin/env bash
# Samples of several documents, with positions, attention and loss of each apart (Megatron's --reset-position-ids,
# --reset-attention-mask and --eod-mask-loss): pp, ZeRO and recomputation change no bit, tp and dp agree to rounding, and a run
# resumes on another mesh. Each flag changes the losses.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

write_documents
flags=${model[*]}
model=(${flags/--mock-data --vocab-size 257/})
model+=(--data-path text_text_document --split 90,10,0 --train-iters 6 --lr-decay-iters 6 --eval-iters 1 --eval-interval 3
        --num-layers 3 --global-batch-size 6)
apart=(--reset-position-ids --reset-attention-mask --eod-mask-loss)
differ() { ! "$bin/plot_loss" --tolerance 1e-6 "$1" "$2" >plot.log 2>&1 || fail "$3 changes nothing"; echo "ok: $3 changes the losses"; }

# Learned positions, then rotary ones: the latter, and the mask, are for every stage.
for positions in "" --use-rotary-position-embeddings; do
  run 1,1,1,0 one.csv "${apart[@]}" $positions
  for mesh in 1,2,1,0 1,3,1,1; do
    run $mesh other.csv "${apart[@]}" $positions --activation-checkpointing
    same one.csv other.csv "documents apart $positions, tp,pp,dp,zero = $mesh"
  done
  for mesh in "2,2,2,1" "1,1,3,3" "2,1,1,0 --sequence-parallel"; do
    run ${mesh%% *} other.csv "${apart[@]}" $positions $([[ $mesh != *" "* ]] || echo "${mesh#* }")
    close one.csv other.csv 1e-5 1 "documents apart $positions, tp,pp,dp,zero = $mesh"
  done
  for flag in "${apart[@]}"; do
    run 1,1,1,0 other.csv ${apart[*]/$flag/} $positions
    if [[ $flag$positions == --reset-position-ids--use* ]]; then  # rotary scores know distances alone
      close one.csv other.csv 1e-5 1 "positions of a document seen apart $positions"
      run 1,1,1,0 seen.csv --eod-mask-loss --reset-position-ids $positions
      run 1,1,1,0 other.csv --eod-mask-loss $positions
      differ seen.csv other.csv "$flag $positions, all tokens seen,"
    else
      differ one.csv other.csv "$flag $positions"
    fi
  done
  run 1,1,1,0 other.csv "${apart[@]}" $positions --bf16
  close one.csv other.csv 5e-3 1 "documents apart $positions in bf16"
  run 1,2,2,1 parts.csv "${apart[@]}" $positions --save ckpt --exit-interval 3
  convert ckpt global_step3
  run 2,1,1,3 parts.csv "${apart[@]}" $positions --load ckpt --universal-checkpoint
  close one.csv parts.csv 1e-5 4 "documents apart $positions, resumed on another mesh"
  rm -r ckpt ./*.csv
done
