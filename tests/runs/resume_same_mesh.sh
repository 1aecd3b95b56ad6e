#!/usr/bin/env bash
# Stops and resumes on the same mesh. Every later loss is bit-identical to the uninterrupted run's. Dropout on.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

# Three layers are 2 + 1 on two stages. Six samples are 6, 3 and 2 micro-batches on one, two and three data-parallel ranks.
model+=(--num-layers 3 --global-batch-size 6 --lr-decay-iters 16)

for mesh in 1,1,1,0 1,1,3,1 2,2,1,0 2,2,2,1 1,2,3,2 2,1,2,3 2,2,2,3; do
  for precision in "" --bf16; do
    train $mesh whole.csv --train-iters 4 $precision >whole.log || fail "$(tail -5 whole.log)"
    train $mesh parts.csv --train-iters 4 $precision --save ckpt --exit-interval 2 >parts.log || fail "$(tail -5 parts.log)"
    train $mesh parts.csv --train-iters 4 $precision --load ckpt >parts.log || fail "$(tail -5 parts.log)"
    same whole.csv parts.csv "tp,pp,dp,zero = $mesh ${precision:-fp32}"
    rm -r ckpt
  done
done

# One command starts and resumes the run: an empty --load is no error if --save is the same folder.
train 1,1,1,0 whole.csv --train-iters 16 >whole.log || fail "$(tail -5 whole.log)"
for stop in 4 8 16; do
  train 1,1,1,0 parts.csv --train-iters 16 --load ckpt --save ckpt --exit-interval $stop >parts.log || fail "$(tail -5 parts.log)"
done
same whole.csv parts.csv "started three times with one command"
train 1,1,1,0 parts.csv --train-iters 16 --load ckpt --save ckpt >parts.log || fail "$(tail -5 parts.log)"
grep -q '^nothing to train: the checkpoint is of iteration 16, the run ends at 16 ' parts.log || fail "a fourth time: $(tail -5 parts.log)"
same whole.csv parts.csv "and a fourth time, with nothing to do"
train 1,1,1,0 parts.csv --train-iters 16 --load ckpt --load-tag global_step4 >parts.log || fail "$(tail -5 parts.log)"
same whole.csv parts.csv "from an older tag"
rm -r ckpt

# fp16: the loss scale moves and steps are skipped, before and after the stop.
fp16=(--fp16 --initial-loss-scale 4194304 --loss-scale-window 4 --hysteresis 2 --global-batch-size 8)
for mesh in 1,2,2,0 1,2,2,1 1,1,4,3; do
  train $mesh whole.csv --train-iters 16 "${fp16[@]}" >whole.log || fail "$(tail -5 whole.log)"
  train $mesh parts.csv --train-iters 16 "${fp16[@]}" --save ckpt --exit-interval 8 >parts.log || fail "$(tail -5 parts.log)"
  train $mesh parts.csv --train-iters 16 "${fp16[@]}" --load ckpt >parts.log || fail "$(tail -5 parts.log)"
  same whole.csv parts.csv "tp,pp,dp,zero = $mesh fp16"
  skipped=$(grep -c "overflow, step skipped" whole.log)
  ((skipped >= 5)) || fail "fp16, $mesh: $skipped steps skipped"
  diff <(cut -d, -f6 whole.csv) <(cut -d, -f6 parts.csv) >/dev/null || fail "fp16, $mesh: another loss scale"
  grep -q "step skipped ($skipped so far)" parts.log || fail "fp16, $mesh: the count of skipped steps was lost"
  rm -r ckpt
done

# Mixtures of experts whose routers count tokens for their bias: a skipped step leaves nothing behind.
experts=(--num-experts 4 --moe-router-topk 2 --swiglu --disable-bias-linear --moe-router-enable-expert-bias
         --moe-router-score-function sigmoid --moe-router-bias-update-rate 0.1)
for mesh in 1,2,2,0 1,1,4,3; do
  train $mesh whole.csv --train-iters 12 "${fp16[@]}" "${experts[@]}" >whole.log || fail "$(tail -5 whole.log)"
  (($(grep -c "overflow, step skipped" whole.log) >= 3)) || fail "too few steps skipped: $(cat whole.log)"
  for stop in 3 5; do  # right after a skipped step
    cp whole.csv parts.csv
    train $mesh first.csv --train-iters 12 "${fp16[@]}" "${experts[@]}" --save ckpt --exit-interval $stop >first.log || fail "$(tail -5 first.log)"
    train $mesh parts.csv --train-iters 12 "${fp16[@]}" "${experts[@]}" --load ckpt >parts.log || fail "$(tail -5 parts.log)"
    same whole.csv parts.csv "tp,pp,dp,zero = $mesh fp16, routers with a bias, stopped at $stop"
    rm -r ckpt
  done
done

# Parameter names without a pipeline change nothing else. The losses are the same under both kinds of names. A checkpoint
# resumes under either, read as it is or as a universal one.
for mesh in 2,1,2,0 2,1,2,1 1,1,3,3; do
  train $mesh whole.csv --train-iters 4 >whole.log || fail "$(tail -5 whole.log)"
  train $mesh first.csv --train-iters 4 --no-pipeline-parallel --save ckpt --exit-interval 2 >first.log || fail "$(tail -5 first.log)"
  [[ -z $(find ckpt -name 'layer_*') ]] || fail "layer files without a pipeline: $(find ckpt -name 'layer_*')"
  convert ckpt global_step2
  [[ -d ckpt/global_step2_universal/zero/language_model.encoder.layers.0.mlp.dense_4h_to_h.weight ]] || fail "$(ls ckpt/*/zero)"
  for load in --no-pipeline-parallel "" --universal-checkpoint; do
    cp first.csv parts.csv
    train $mesh parts.csv --train-iters 4 --load ckpt $load >parts.log || fail "$(tail -5 parts.log)"
    same whole.csv parts.csv "tp,pp,dp,zero = $mesh, language_model names, loaded with '$load'"
    ! grep "Megatron-DeepSpeed's" convert.log parts.log || fail "a checkpoint of ours was taken for one of Megatron-DeepSpeed's"
  done
  rm -r ckpt
done
if train 1,2,1,1 pipe.csv --train-iters 10 --no-pipeline-parallel >pipe.log 2>&1; then fail "two stages without a pipeline"; fi
grep -q -- "--no-pipeline-parallel: --pipeline-model-parallel-size (2) must be 1" pipe.log || fail "$(tail -5 pipe.log)"
