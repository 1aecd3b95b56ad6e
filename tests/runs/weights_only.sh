#!/usr/bin/env bash
# Checkpoints without optimizer state, whole models, and frozen parameters: the flags decide what is written. The test checks
# loads and refusals on meshes other than the saving one.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

says() {  # WORDS COMMAND...
  local words=$1
  shift
  "$@" >said.log 2>&1 || fail "$*: $(tail -5 said.log)"
  grep -q -e "$words" said.log || fail "$*: expected '$words': $(tail -70 said.log)"
}

schedule=(--lr-decay-iters 40)
first_stage=(--freeze embeddings '^[234]\.')  # of two stages

# Weights alone: they take a third of a checkpoint's bytes in fp32, and give the same model on any mesh.
train 1,1,3,3 base.csv --train-iters 10 "${schedule[@]}" --save full >full.log || fail "$(tail -5 full.log)"
train 2,2,1,1 test.csv --train-iters 10 "${schedule[@]}" --load full --save weights --no-save-optim --save-16bit-model >log || fail "$(tail -5 log)"
train 1,1,3,3 test.csv --train-iters 10 "${schedule[@]}" --load full --save weights3 --save-weights-only --save-16bit-model >log || fail "$(tail -5 log)"
grep -q "each checkpoint: .* model states .*, whole model" log || fail "$(cat log)"
"$bin/zero_to_fp32" full exported >/dev/null
for folder in weights weights3; do
  [[ -z $(ls $folder/global_step10/*optim_states.pt $folder/global_step10/zero_pp_* 2>/dev/null) ]] || fail "$(ls $folder/global_step10)"
  [[ ! -e $folder/zero_to_fp32.py ]] || fail "a script that cannot read $folder is beside it"
  says "no problem" "$bin/ckpt" verify $folder
  says "weights-only checkpoint of tp" "$bin/ckpt" inspect $folder
  says " 0 differences" "$bin/ckpt" diff exported $folder
  says " 0 differences" "$bin/ckpt" diff exported $folder/global_step10/pytorch_model.bin
  "$bin/zero_to_fp32" $folder exported-$folder >/dev/null
  refused "holds weights only" "$bin/ds_to_universal" --input_folder $folder/global_step10 --output_folder universal
  refused "without optimizer state (--no-save-optim)" train 1,1,2,1 test.csv --train-iters 12 "${schedule[@]}" --load $folder
done
cmp exported-weights/pytorch_model.bin exported-weights3/pytorch_model.bin
cmp weights/global_step10/pytorch_model.bin weights3/global_step10/pytorch_model.bin
[[ $(stat -c %s weights3/global_step10/mp_rank_00_model_states.pt) -lt $(($(du -sb full/global_step10 | cut -f1) * 2 / 5)) ]] || fail "$(ls -l weights3/global_step10)"

train 1,1,2,2 expected.csv --train-iters 6 "${schedule[@]}" --load full --finetune >log || fail "$(tail -5 log)"
for mesh in 1,1,1,0 2,3,1,1 1,2,2,3; do
  for folder in weights weights3; do
    train $mesh fine.csv --train-iters 6 "${schedule[@]}" --load $folder --finetune >log || fail "$mesh: $(tail -5 log)"
    close expected.csv fine.csv 1e-6 1 "$folder fine-tuned on tp,pp,dp,zero = $mesh"
    rm fine.csv
  done
done
train 1,1,3,3 test.csv --train-iters 10 "${schedule[@]}" --load full --save from-disk --no-save-optim --save-16bit-model \
  --offload-optimizer nvme --offload-param nvme --nvme-path "$scratch" >log || fail "$(tail -5 log)"
cmp weights3/global_step10/pytorch_model.bin from-disk/global_step10/pytorch_model.bin
says " 0 differences" "$bin/ckpt" diff exported from-disk
train 1,3,1,1 test.csv --train-iters 12 "${schedule[@]}" --load weights3 --no-load-optim >log || fail "$(tail -5 log)"
[[ $(losses test.csv 11 | cut -d, -f1 | head -1) == 11 ]] || fail "--no-load-optim did not go on at step 11"

# Frozen parameters: the flag reaches training, saves and loads (weights_ranks_test has every mesh and stage).
rm -f *.csv
train 1,1,2,0 frozen.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" >log || fail "$(tail -5 log)"
train 1,1,2,3 frozen3.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" >log || fail "$(tail -5 log)"
train 1,1,2,3 test.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" --offload-optimizer nvme --offload-param nvme --nvme-path "$scratch" >log || fail "$(tail -5 log)"
same frozen3.csv test.csv "frozen, tp,pp,dp,zero = 1,1,2,3, offloaded to disk"
rm test.csv
train 1,2,2,3 part.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" --save part --exit-interval 10 --activation-checkpointing >log || fail "$(tail -5 log)"
convert part global_step10
says "no problem" "$bin/ckpt" verify part
"$bin/zero_to_fp32" part exported >/dev/null
for flags in "" --universal-checkpoint; do
  train 2,1,1,0 test.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" --load part $flags >log || fail "$(tail -5 log)"
  close frozen.csv test.csv 1e-5 11 "frozen, tp,pp,dp,zero = 1,2,2,3 -> 2,1,1,0 $flags"
  rm test.csv
done

for flags in "" --universal-checkpoint; do
  refused "no moments of these parameters, as they were not trained: 2.input_layernorm.bias" \
    train 1,2,1,1 test.csv --train-iters 14 "${schedule[@]}" --load part $flags
  says "With zeros at step 10 their first update is 0.48 times" \
    train 1,2,1,1 test.csv --train-iters 14 "${schedule[@]}" --load part $flags --allow-fresh-moments
done
train 1,2,1,1 left.csv --train-iters 10 "${schedule[@]}" "${first_stage[@]}" --save left --exclude-frozen-parameters >log || fail "$(tail -5 log)"
[[ ! -e left/global_step10/layer_01-model_00-model_states.pt ]] || fail "$(ls left/global_step10)"
convert left global_step10
for flags in "" --universal-checkpoint; do
  train 1,1,2,3 left2.csv --train-iters 14 "${schedule[@]}" "${first_stage[@]}" --load left $flags >log || fail "$(tail -5 log)"
  grep -q "keep the values they have: 2.input_layernorm.bias" log || fail "no announcement: $(cat log)"
  close frozen.csv left2.csv 1e-5 11 "frozen parameters left out of the files $flags"
  rm left2.csv
done
refused "missing in the checkpoint" train 1,1,2,3 test.csv --train-iters 14 "${schedule[@]}" --load left

refused "no parameter's name has that. There are:" train 1,2,1,1 test.csv --train-iters 1 "${schedule[@]}" --freeze lora
refused "not a regular expression" train 1,1,1,1 test.csv --train-iters 1 "${schedule[@]}" --freeze '(['
refused "nothing would be left to train" train 1,1,1,1 test.csv --train-iters 1 "${schedule[@]}" --freeze .
refused "exclude-frozen-parameters has no effect without --freeze" train 1,1,1,1 test.csv --train-iters 1 "${schedule[@]}" --save x --exclude-frozen-parameters
refused "no-save-optim has no effect without --save" train 1,1,1,1 test.csv --train-iters 1 "${schedule[@]}" --no-save-optim
