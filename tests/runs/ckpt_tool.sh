#!/usr/bin/env bash
# Runs ckpt on checkpoints that the trainer wrote. verify finds nothing in whole ones and names the damage in broken ones. A
# universal folder and a save on another mesh hold the same tensors bit by bit; two iterations do not.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ckpt() { "$bin/ckpt" "$@" >ckpt.log 2>&1; }
sound() { ckpt verify "$1" || fail "verify $1: $(tail -3 ckpt.log)"; echo "ok: $(tail -1 ckpt.log)"; }
equal() { ckpt diff "$1" "$2" || fail "diff $1 $2: $(tail -3 ckpt.log)"; grep -q ', 0 differences$' ckpt.log || fail "diff $1 $2"; echo "ok: $1 and $2: $(tail -1 ckpt.log)"; }

schedule=(--lr-decay-iters 100)
train 2,2,1,1 /dev/null --train-iters 4 "${schedule[@]}" --save ckpt --save-interval 2 >train.log || fail "$(tail -5 train.log)"
sound ckpt
sound ckpt/global_step2
convert ckpt global_step4
sound ckpt/global_step4_universal
equal ckpt ckpt/global_step4_universal

ckpt diff --all ckpt/global_step2 ckpt/global_step4 && fail "iterations 2 and 4 are the same"
grep -q '^tied_modules.embed.word_embeddings.weight fp32: differs in ' ckpt.log || fail "no weight differs: $(tail -5 ckpt.log)"
grep -q '^2.input_layernorm.weight step: 2 in A, 4 in B$' ckpt.log || fail "no step differs: $(tail -5 ckpt.log)"
echo "ok: two iterations: $(tail -1 ckpt.log)"

# Loads on other meshes and saves again before any step. At ZeRO 0 the optimizer is in the model-states files.
for mesh in 1,1,1,0 1,2,2,1 4,1,1,0; do
  train $mesh /dev/null --train-iters 4 "${schedule[@]}" --load ckpt --universal-checkpoint --save again-$mesh >again.log ||
    fail "$mesh: $(tail -5 again.log)"
  sound again-$mesh
  equal ckpt again-$mesh
done
train 2,1,2,1 /dev/null --bf16 --train-iters 2 "${schedule[@]}" --save half >half.log || fail "$(tail -5 half.log)"
sound half
convert half global_step2
equal half half/global_step2_universal

ckpt inspect ckpt || fail "inspect: $(tail -3 ckpt.log)"
grep -q '^ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1$' ckpt.log || fail "inspect: no mesh"
grep -q 'iteration 4, 48 samples consumed, fp32' ckpt.log || fail "inspect: $(grep iteration ckpt.log | head -3)"

# Broken checkpoints.
rm ckpt/global_step4/zero_pp_rank_0_mp_rank_03_optim_states.pt
printf x | dd of=ckpt/global_step4/layer_03-model_01-model_states.pt bs=1 seek=4000 conv=notrunc status=none
cp ckpt/global_step2/zero_pp_rank_0_mp_rank_01_optim_states.pt ckpt/global_step4
ckpt verify ckpt && fail "verify finds nothing in a broken checkpoint"
for what in 'zero_pp_rank_0_mp_rank_03_optim_states.pt: is missing' 'layer_03-model_01-model_states.pt: record .* is damaged' \
            'zero_pp_rank_0_mp_rank_01_optim_states.pt: step is 2, but 4 in'; do
  grep -q "$what" ckpt.log || fail "verify does not say '$what': $(cat ckpt.log)"
done
echo "ok: $(tail -1 ckpt.log)"
code=0; ckpt compare ckpt || code=$?
[[ $code == 2 ]] || fail "an unknown command exits with $code"
