#!/usr/bin/env bash
# Resumes with other flags than the first run's: batch size, validation intervals, --verify-resume, and flags that decide the
# model's maths. They are accepted where they may differ, and refused where they may not. Also covers a frozen stage with
# offloading.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

model=(--num-layers 5 --hidden-size 24 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16
       --make-vocab-size-divisible-by 8 --mock-data --vocab-size 257 --global-batch-size 12 --lr 3e-4
       --lr-decay-style constant --eval-iters 0 --log-interval 10)
says() { grep -qF -- "$1" log || fail "no '$1' in: $(tail -20 log)"; echo "ok: $1"; }
refused() {
  local text=$1
  ! train 1,1,1,0 no.csv "${@:2}" >log 2>&1 || fail "accepted: ${*:2}"
  says "$text"
}

# 96 samples in all, whatever the batch size.
for batch in 6 24; do
  rm -rf ckpt *.csv
  run 1,1,1,0 one.csv --train-samples 96 --exit-interval 4 --save ckpt
  run 1,1,2,1 two.csv --train-samples 96 --global-batch-size "$batch" --load ckpt
  [[ $(tail -1 two.csv | cut -d, -f1,2) == "$((4 + 48 / batch)),96" ]] || fail "batch $batch: $(tail -1 two.csv)"
  echo "ok: batch 12 -> $batch ends after 96 samples"
done
rm -rf ckpt *.csv
run 1,1,1,0 one.csv --train-iters 8 --exit-interval 4 --save ckpt
run 1,1,1,0 two.csv --train-iters 8 --global-batch-size 24 --load ckpt
[[ $(tail -1 two.csv | cut -d, -f1,2) == 8,144 ]] || fail "$(tail -1 two.csv)"

# Validations with other intervals continue where the last stopped.
rm -rf ckpt *.csv
run 1,1,1,0 one.csv --train-iters 12 --exit-interval 6 --eval-iters 2 --eval-interval 1 --save ckpt --verify-resume
for flags in "--eval-iters 2 --eval-interval 6" "--eval-iters 1 --eval-interval 4"; do
  run 1,1,1,0 "two.csv" --train-iters 12 $flags --load ckpt
  says "validation loss at iteration 12"
  rm two.csv
done
# A loss for --verify-resume belongs to the save after its measurement. Later saves do not inherit it.
run 1,1,1,0 three.csv --train-iters 20 --eval-iters 2 --eval-interval 1 --load ckpt --save ckpt --exit-interval 12
run 1,1,1,0 four.csv --train-iters 20 --eval-iters 2 --eval-interval 1 --load ckpt --verify-resume --exit-interval 13
says "nothing to compare with"

refused "--profile-step (3) must be at least 13" --train-iters 20 --load ckpt --profile-step 3
refused "--profile-step (99): the run ends at step 13" --train-samples 160 --load ckpt --profile-step 99
refused "give --layernorm-epsilon 1e-05" --train-iters 20 --load ckpt --layernorm-epsilon 0.5
refused "see --no-bias-gelu-fusion" --train-iters 20 --load ckpt --no-bias-gelu-fusion

# Settings that change what training computes are named, on the same mesh and on another, read as saved or resharded.
for mesh in 1,1,1,0 1,1,2,1; do
  run $mesh two.csv --train-iters 8 --load ckpt --load-tag global_step6 --adam-beta2 0.99 --adam-eps 1e-7 --clip-grad 0.5 \
    --hidden-dropout 0 --weight-decay 0.1
  says "had betas of 0.9, 0.999; this one goes on with 0.9, 0.99"
  says "had eps of 1e-08; this one goes on with 1e-07"
  says "had clip_grad = 1; this one goes on with 0.5"
  says "had hidden_dropout = 0.1; this one goes on with 0"
  says "had a weight decay of 0.01; this one goes on with 0.1"
  rm two.csv
done
run 1,1,1,0 two.csv --train-iters 8 --load ckpt --load-tag global_step6
! grep "this one goes on with" log || fail "the same settings are named"
rm -rf ckpt two.csv
moe=(--num-experts 4 --swiglu --disable-bias-linear --moe-aux-loss-coeff 0.01)
run 1,1,2,1 one.csv --train-iters 2 "${moe[@]}" --save ckpt
run 1,1,1,0 two.csv --train-iters 4 "${moe[@]}" --load ckpt --micro-batch-size 2 --moe-z-loss-coeff 0.1
says "had micro_batch_size = 1; this one goes on with 2"
says "had moe_z_loss_coeff = 0; this one goes on with 0.1"

# A stage without trainable parameters has no state to offload, and no decay.
rm -rf ckpt *.csv
frozen=(--untie-embeddings-and-output-weights --freeze '^[1-4]\.')
run 1,2,2,1 one.csv --train-iters 2 "${frozen[@]}" --save ckpt
for where in cpu nvme; do
  run 1,2,2,1 two.csv --train-iters 2 "${frozen[@]}" --offload-optimizer $where $([[ $where == cpu ]] || echo --nvme-path .) --report-memory
  same one.csv two.csv "a frozen stage beside --offload-optimizer $where"
  rm two.csv
done
run 2,1,1,1 two.csv --train-iters 4 "${frozen[@]}" --load ckpt
! grep -q "weight decay of" log || fail "$(grep "weight decay" log)"
