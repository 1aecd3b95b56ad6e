#!/usr/bin/env bash
# Trains 20 steps on tp2 x pp2 x dp2, converts, and resumes for 20 on other meshes. The first loss is within 1e-6 relative of
# the uninterrupted run's, all are within 1e-4 (resume_matrix compares the state). Then changes the mesh a second and a third
# time.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

families() {
  mkdir families && cd families
  # Fused and grouped weights: SwiGLU with grouped-query attention, and BLOOM's.
  llama=(--swiglu --num-key-value-heads 2 --normalization rmsnorm --disable-bias-linear --use-rotary-position-embeddings
         --untie-embeddings-and-output-weights)
  bloom=(--position-embedding-type alibi --embed-layernorm)
  for family in llama bloom; do
    declare -n flags=$family
    train 2,2,1,1 whole.csv --train-iters 12 "${flags[@]}" >log || fail "$(tail -5 log)"
    train 2,2,1,1 part.csv --train-iters 12 "${flags[@]}" --save "ckpt-$family" --exit-interval 6 >log || fail "$(tail -5 log)"
    for mesh in 1,1,1,0 1,2,2,3 2,1,2,2; do
      train $mesh test.csv --train-iters 12 "${flags[@]}" --load "ckpt-$family" >log || fail "$(tail -5 log)"
      close whole.csv test.csv 1e-6 7 "$family, tp,pp,dp,zero = $mesh"
      rm test.csv
    done
  done

  # GPT-2's vocabulary of 29 x 1733 entries divides evenly only at tp 1.
  gpt2=(--vocab-size=50257 --lr-warmup-iters=1 --make-vocab-size-divisible-by=128 --num-attention-heads=12)
  train 3,1,1,0 whole.csv --train-iters 4 "${gpt2[@]}" --save ckpt-gpt2 --save-interval 2 >log || fail "$(tail -5 log)"
  echo -n global_step2 >ckpt-gpt2/latest
  for mesh in 1,1,1,0 2,2,1,1 4,1,2,3; do
    rm -f test.csv
    train $mesh test.csv --train-iters 4 "${gpt2[@]}" --load ckpt-gpt2 >log || fail "$(tail -5 log)"
    close whole.csv test.csv 1e-6 3 "vocabulary 50257, tp,pp,dp,zero = 3,1,1,0 -> $mesh"
  done

  # BLOOM on eight ranks, on half of them, on all of them again.
  train 2,4,1,1 whole.csv --train-iters 12 "${bloom[@]}" >log || fail "$(tail -5 log)"
  for half in 1,4,1,1 2,2,1,1; do
    rm -rf half half.csv
    train 2,4,1,1 half.csv --train-iters 12 "${bloom[@]}" --save half --exit-interval 4 >log || fail "$(tail -5 log)"
    train $half half.csv --train-iters 12 "${bloom[@]}" --load half --save half --exit-interval 4 >log || fail "$(tail -5 log)"
    train 2,4,1,1 half.csv --train-iters 12 "${bloom[@]}" --load half >log || fail "$(tail -5 log)"
    close whole.csv half.csv 1e-6 1 "BLOOM, 2,4,1,1 -> $half -> 2,4,1,1"
  done
}
families &
background=$!

schedule=(--lr-decay-iters 40)
train 2,2,2,1 whole.csv --train-iters 40 >whole.log || fail "$(tail -5 whole.log)"
train 2,2,2,1 first.csv --train-iters 20 "${schedule[@]}" --save ckpt >first.log || fail "$(tail -5 first.log)"
same <(head -21 whole.csv) first.csv "the first 20 iterations"
convert ckpt global_step20

for mesh in 1,1,1,0 4,1,1,1 1,4,1,0 1,1,4,2 2,1,3,3 1,2,3,1 2,3,1,3 1,1,6,0; do
  train $mesh test.csv --train-iters 40 --load ckpt --universal-checkpoint >resume.log || fail "$mesh: $(tail -5 resume.log)"
  close whole.csv test.csv 1e-4 21 "tp,pp,dp,zero = $mesh, iterations 21-40"
  close <(head -22 whole.csv) <(head -2 test.csv) 1e-6 21 "tp,pp,dp,zero = $mesh, iteration 21"
done

# Without a conversion step: a load reshards an ordinary checkpoint, and --universal-checkpoint converts it if no universal
# folder exists. Weights alone load on any mesh too.
mkdir direct
cp -r ckpt/latest ckpt/global_step20 direct/
for mesh in 1,1,1,0 4,1,1,3 1,2,3,2; do
  train $mesh direct.csv --train-iters 26 "${schedule[@]}" --load direct >direct.log || fail "$mesh: $(tail -5 direct.log)"
  grep -q "resharding it to this mesh: iteration 20" direct.log || fail "$mesh: $(cat direct.log)"
  train $mesh test.csv --train-iters 26 "${schedule[@]}" --load ckpt --universal-checkpoint >resume.log || fail "$mesh: $(tail -5 resume.log)"
  same test.csv direct.csv "tp,pp,dp,zero = $mesh, resharded directly against through the universal folder" 21
  rm direct.csv
done
train 2,1,1,0 test.csv --train-iters 40 --load direct --universal-checkpoint >direct.log || fail "$(tail -5 direct.log)"
grep -q "converted global_step20 to global_step20_universal" direct.log || fail "$(cat direct.log)"
train 1,3,1,1 fine.csv --train-iters 2 "${schedule[@]}" --load ckpt --finetune >fine.log || fail "$(tail -5 fine.log)"
train 4,1,1,0 fine2.csv --train-iters 2 "${schedule[@]}" --load direct --universal-checkpoint --finetune >fine.log || fail "$(tail -5 fine.log)"
close fine.csv fine2.csv 1e-6 1 "fine-tuning from weights alone, tp 4 against pp 3"
train 1,1,2,0 noopt.csv --train-iters 22 "${schedule[@]}" --load ckpt --no-load-optim --no-load-lr-state --no-load-rng --seed=7 >noopt.log || fail "$(tail -5 noopt.log)"
[[ $(losses noopt.csv 21 | cut -d, -f1,4 | head -1) == "21,0" ]] || fail "--no-load-lr-state: the schedule did not start afresh"

# A newer ordinary checkpoint beside the universal one is reported.
train 1,1,1,0 test.csv --train-iters 22 "${schedule[@]}" --load ckpt --save ckpt >log || fail "$(tail -5 log)"
train 1,1,1,0 test.csv --train-iters 22 "${schedule[@]}" --load ckpt --universal-checkpoint >log || fail "$(tail -5 log)"
grep -q "WARNING: .*newer ordinary checkpoint, global_step22" log || fail "no warning: $(cat log)"
echo "ok: a newer ordinary checkpoint is reported"

# A chain of meshes: 20 on the first, 6 on the second, 6 on the third, 8 on the fourth.
train 1,2,3,3 chain.csv --train-iters 26 "${schedule[@]}" --load ckpt --universal-checkpoint --save ckpt2 >chain.log || fail "$(tail -5 chain.log)"
convert ckpt2 global_step26
train 2,2,1,2 chain.csv --train-iters 32 "${schedule[@]}" --load ckpt2 --universal-checkpoint --save ckpt3 >chain.log || fail "$(tail -5 chain.log)"
convert ckpt3 global_step32
train 1,3,2,1 chain.csv --train-iters 40 --load ckpt3 --universal-checkpoint >chain.log || fail "$(tail -5 chain.log)"
close whole.csv chain.csv 1e-4 21 "three changes of mesh, iterations 21-40"

# A run in fp16 resumes with the dynamic loss scale of the checkpoint. This run's loss scale replaces a static or absent one.
train 2,1,2,1 bf16.csv --bf16 --train-iters 20 "${schedule[@]}" --save ckpt-bf16 >bf16.log || fail "$(tail -5 bf16.log)"
train 1,1,2,2 fp16.csv --fp16 --initial-loss-scale 4096 --train-iters 20 "${schedule[@]}" --save ckpt-fp16 >log || fail "$(tail -5 log)"
convert ckpt-fp16 global_step20
train 1,1,1,1 test.csv --fp16 --train-iters 22 "${schedule[@]}" --load ckpt-fp16 --universal-checkpoint >log || fail "$(tail -5 log)"
[[ $(tail -1 test.csv | cut -d, -f6) == 4096 ]] || fail "the dynamic loss scale was not restored: $(tail -1 test.csv)"
train 2,2,1,1 test.csv --fp16 --initial-loss-scale 512 --train-iters 22 "${schedule[@]}" --load ckpt-bf16 >log || fail "$(tail -5 log)"
grep -q "no dynamic loss scale: starting at 512" log || fail "bf16 -> fp16: $(cat log)"
[[ $(tail -1 test.csv | cut -d, -f6) == 512 ]] || fail "bf16 -> fp16: $(tail -1 test.csv)"
echo "ok: loss scales are restored or started"

# Another schedule and another batch are refused, or announced.
other=(--train-iters 24 --lr 1e-3 --lr-decay-iters 120 --global-batch-size 24)
if train 1,1,2,1 test.csv "${other[@]}" --load direct >log 2>&1; then fail "another schedule was accepted"; fi
grep -q "use-checkpoint-opt_param-scheduler" log || fail "$(tail -5 log)"
train 1,1,2,1 override.csv "${other[@]}" --load direct --override-opt_param-scheduler >log || fail "$(tail -5 log)"
grep -q "global batch size 12 -> 24" log || fail "no announcement: $(cat log)"
[[ $(tail -1 override.csv | cut -d, -f2) == $((240 + 4 * 24)) ]] || fail "samples: $(tail -1 override.csv)"
train 1,1,2,1 use.csv "${other[@]}" --load direct --use-checkpoint-opt_param-scheduler --verify-resume --eval-iters 2 >log || fail "$(tail -5 log)"
[[ $(losses whole.csv 21 | head -1 | cut -d, -f4) == $(losses use.csv 21 | head -1 | cut -d, -f4) ]] || fail "the checkpoint's schedule was not used"
[[ $(losses whole.csv 21 | head -1 | cut -d, -f4) != $(losses override.csv 21 | head -1 | cut -d, -f4) ]] || fail "this run's schedule was not used"
grep -q "verify-resume: nothing to compare with" log || fail "$(cat log)"

# Validates before the save and after the load. A difference ends the run.
verify=(--verify-resume --eval-iters 2 --train-iters 4 "${schedule[@]}")
train 2,1,2,2 test.csv "${verify[@]}" --save ckpt-verify >log || fail "$(tail -5 log)"
train 1,3,1,0 test.csv "${verify[@]}" --load ckpt-verify >log || fail "$(tail -5 log)"
grep -E "verify-resume: .* relative difference ([0-9.]+e-(0[7-9]|[1-9][0-9])|0.0e\+00)$" log || fail "$(cat log)"
train 1,1,1,0 test.csv "${verify[@]}" --init-method-std 1 --save ckpt-steep >log || fail "$(tail -5 log)"
if train 1,1,1,0 test.csv "${verify[@]}" --load ckpt-steep --layernorm-epsilon 100 --save other >log 2>&1; then fail "other maths went on: $(cat log)"; fi
grep -q "give --layernorm-epsilon 1e-05" log || fail "$(cat log)"
convert ckpt-steep global_step4
zero=ckpt-steep/global_step4_universal/zero
rm "$zero/../manifest.json"  # its checksums would report the swap earlier
mv "$zero/7.weight" swap
mv "$zero/7.bias" "$zero/7.weight"
mv swap "$zero/7.bias"
if train 1,1,1,0 test.csv "${verify[@]}" --load ckpt-steep --universal-checkpoint --save other >log 2>&1; then
  fail "a wrong model went on: $(cat log)"
fi
grep -q "the loaded model is not the saved one" log || fail "$(cat log)"
[[ ! -e other ]] || fail "a refused resume saved something"
wait $background
