#!/usr/bin/env bash
# Trains 20 steps on tp2 x pp2 x dp2, converts, and resumes on other meshes: on three and on a chain of three for 20 steps, on the
# others for 6. The first loss is within 1e-6 relative of the uninterrupted run's, all are within 1e-4 (resume_matrix compares
# the state).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

# run MESH CSV FLAGS...: trains with few micro-batches on a rank: as many as stages, but two at least, or more if these do not
# divide the rank's part of the twelve samples. Its output is in log.
run() {
  local pp dp samples few
  IFS=, read -r _ pp dp _ <<<"$1"
  samples=$((12 / dp)) few=$((pp > 2 ? pp : 2))
  while ((samples % few != 0)); do ((few += 1)); done
  train "$1" "$2" --micro-batch-size $((samples / few)) "${@:3}" >log 2>&1
}
must() { run "$@" || fail "$*: $(tail -5 log)"; }

schedule=(--lr-decay-iters 40)
must 2,2,2,1 whole.csv --train-iters 40 --save ckpt --save-interval 20
back_to ckpt global_step20 global_step40
mkdir direct
cp -r ckpt/latest ckpt/global_step20 direct/
convert ckpt global_step20

for mesh in 1,1,1,0 4,1,1,3 1,4,1,0 1,1,4,2 2,1,3,3 1,2,3,2 2,3,1,1 1,1,6,0; do
  last=$([[ $mesh == 1,1* ]] && echo 40 || echo 26)
  must $mesh "$mesh.csv" --train-iters "$last" "${schedule[@]}" --load ckpt --universal-checkpoint
  close <(head -$((last + 1)) whole.csv) "$mesh.csv" 1e-4 21 "tp,pp,dp,zero = $mesh, iterations 21-$last"
  close <(head -22 whole.csv) <(head -2 "$mesh.csv") 1e-6 21 "tp,pp,dp,zero = $mesh, iteration 21"
done

# Without a conversion step: a load reshards an ordinary checkpoint, and --universal-checkpoint converts it if no universal
# folder exists. Weights alone load on any mesh too.
for mesh in 1,1,1,0 4,1,1,3 1,2,3,2; do
  must $mesh direct.csv --train-iters 26 "${schedule[@]}" --load direct
  grep -q "resharding it to this mesh: iteration 20" log || fail "$mesh: $(cat log)"
  same <(head -7 "$mesh.csv") direct.csv "tp,pp,dp,zero = $mesh, resharded directly against through the universal folder" 21
  rm direct.csv
done
must 2,1,1,0 test.csv --train-iters 21 "${schedule[@]}" --load direct --universal-checkpoint
grep -q "converted global_step20 to global_step20_universal" log || fail "$(cat log)"
must 1,3,1,1 fine.csv --train-iters 2 "${schedule[@]}" --load ckpt --finetune
must 4,1,1,0 fine2.csv --train-iters 2 "${schedule[@]}" --load direct --universal-checkpoint --finetune
close fine.csv fine2.csv 1e-6 1 "fine-tuning from weights alone, tp 4 against pp 3"
must 1,1,2,0 noopt.csv --train-iters 22 "${schedule[@]}" --load ckpt --no-load-optim --no-load-lr-state --no-load-rng --seed=7 --allow-other-data
[[ $(losses noopt.csv 21 | cut -d, -f1,4 | head -1) == "21,0" ]] || fail "--no-load-lr-state: the schedule did not start afresh"

# A newer ordinary checkpoint beside the universal one is reported.
must 1,1,1,0 test.csv --train-iters 22 "${schedule[@]}" --load ckpt --save ckpt
must 1,1,1,0 test.csv --train-iters 22 "${schedule[@]}" --load ckpt --universal-checkpoint
grep -q "WARNING: .*newer ordinary checkpoint, global_step22" log || fail "no warning: $(cat log)"
echo "ok: a newer ordinary checkpoint is reported"

# A chain of meshes: 20 on the first, 6 on the second, 6 on the third, 8 on the fourth.
must 1,2,3,3 chain.csv --train-iters 26 "${schedule[@]}" --load ckpt --universal-checkpoint --save ckpt2
convert ckpt2 global_step26
must 2,2,1,2 chain.csv --train-iters 32 "${schedule[@]}" --load ckpt2 --universal-checkpoint --save ckpt3
convert ckpt3 global_step32
must 1,3,2,1 chain.csv --train-iters 40 --load ckpt3 --universal-checkpoint
close whole.csv chain.csv 1e-4 21 "three changes of mesh, iterations 21-40"

# A run in fp16 resumes with the dynamic loss scale of the checkpoint. This run's loss scale replaces a static or absent one.
must 2,1,2,1 bf16.csv --bf16 --train-iters 3 "${schedule[@]}" --save ckpt-bf16
must 1,1,2,2 fp16.csv --fp16 --initial-loss-scale 4096 --train-iters 3 "${schedule[@]}" --save ckpt-fp16
convert ckpt-fp16 global_step3
must 1,1,1,1 test.csv --fp16 --train-iters 5 "${schedule[@]}" --load ckpt-fp16 --universal-checkpoint
[[ $(tail -1 test.csv | cut -d, -f6) == 4096 ]] || fail "the dynamic loss scale was not restored: $(tail -1 test.csv)"
must 2,2,1,1 test.csv --fp16 --initial-loss-scale 512 --train-iters 5 "${schedule[@]}" --load ckpt-bf16
grep -q "no dynamic loss scale: starting at 512" log || fail "bf16 -> fp16: $(cat log)"
[[ $(tail -1 test.csv | cut -d, -f6) == 512 ]] || fail "bf16 -> fp16: $(tail -1 test.csv)"
echo "ok: loss scales are restored or started"

# Another schedule and another batch are refused, or announced.
other=(--train-iters 22 --lr 1e-3 --lr-decay-iters 120 --global-batch-size 24)
if run 1,1,2,1 test.csv "${other[@]}" --load direct; then fail "another schedule was accepted"; fi
grep -q "use-checkpoint-opt_param-scheduler" log || fail "$(tail -5 log)"
must 1,1,2,1 override.csv "${other[@]}" --load direct --override-opt_param-scheduler
grep -q "global batch size 12 -> 24" log || fail "no announcement: $(cat log)"
[[ $(tail -1 override.csv | cut -d, -f2) == $((240 + 2 * 24)) ]] || fail "samples: $(tail -1 override.csv)"
must 1,1,2,1 use.csv "${other[@]}" --load direct --use-checkpoint-opt_param-scheduler --verify-resume --eval-iters 2
[[ $(losses whole.csv 21 | head -1 | cut -d, -f4) == $(losses use.csv 21 | head -1 | cut -d, -f4) ]] || fail "the checkpoint's schedule was not used"
[[ $(losses whole.csv 21 | head -1 | cut -d, -f4) != $(losses override.csv 21 | head -1 | cut -d, -f4) ]] || fail "this run's schedule was not used"
grep -q "verify-resume: nothing to compare with" log || fail "$(cat log)"

# Validates before the save and after the load. A difference ends the run.
verify=(--verify-resume --eval-iters 2 --train-iters 2 "${schedule[@]}")
must 2,1,2,2 test.csv "${verify[@]}" --save ckpt-verify
must 1,3,1,0 test.csv "${verify[@]}" --load ckpt-verify
grep -E "verify-resume: .* relative difference ([0-9.]+e-(0[7-9]|[1-9][0-9])|0.0e\+00)$" log || fail "$(cat log)"
must 1,1,1,0 test.csv "${verify[@]}" --init-method-std 1 --save ckpt-steep
if run 1,1,1,0 test.csv "${verify[@]}" --load ckpt-steep --layernorm-epsilon 100 --save other; then fail "other maths went on: $(cat log)"; fi
grep -q "give --layernorm-epsilon 1e-05" log || fail "$(cat log)"
convert ckpt-steep global_step2
zero=ckpt-steep/global_step2_universal/zero
rm "$zero/../manifest.json"  # its checksums would report the swap earlier
mv "$zero/7.weight" swap
mv "$zero/7.bias" "$zero/7.weight"
mv swap "$zero/7.bias"
if run 1,1,1,0 test.csv "${verify[@]}" --load ckpt-steep --universal-checkpoint --save other; then
  fail "a wrong model went on: $(cat log)"
fi
grep -q "the loaded model is not the saved one" log || fail "$(cat log)"
[[ ! -e other ]] || fail "a refused resume saved something"
