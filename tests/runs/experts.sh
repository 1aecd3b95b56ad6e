#!/usr/bin/env bash
# Mixtures of experts: pp, ZeRO and recomputation change no bit over 8 to 25 steps, tp and dp agree to rounding, and runs resume on
# other meshes, directly and by a universal folder, with the state bit-equal. bf16 stays close. (gpt_parity_ranks_test has the flags.)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

model+=(--swiglu --disable-bias-linear --normalization rmsnorm --use-rotary-position-embeddings --ffn-hidden-size 32
        --num-experts 6 --moe-ffn-hidden-size 16 --moe-layer-freq 2 --moe-shared-expert-intermediate-size 8
        --qk-layernorm --qk-layernorm-all-heads
        --lr-decay-iters 25 --lr 1e-2 --num-layers 3 --global-batch-size 6)
balanced=(--moe-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.001)

run 1,1,1,0 one.csv --train-iters 25 "${balanced[@]}"
for row in "8 1,2,1,1" "8 1,3,1,0" "25 1,1,1,3"; do
  read -r steps mesh <<<"$row"
  run $mesh other.csv --train-iters $steps "${balanced[@]}" --activation-checkpointing
  same <(head -$((steps + 1)) one.csv) other.csv "experts, tp,pp,dp,zero = $mesh, recomputed"
done
for row in "25 2,2,2,1" "8 1,1,3,3" "8 4,1,1,0" "8 2,1,2,2 --sequence-parallel"; do
  read -r steps mesh flags <<<"$row"
  run $mesh other.csv --train-iters $steps "${balanced[@]}" $flags
  close <(head -$((steps + 1)) one.csv) other.csv 1e-5 1 "experts, tp,pp,dp,zero = $mesh $flags"
done

run 1,1,1,0 short.csv --train-iters 3 "${balanced[@]}"
run 1,1,1,0 other.csv --train-iters 3 "${balanced[@]}" --bf16
close short.csv other.csv 5e-3 1 "experts in bf16"
bias=(--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate)
run 1,1,1,0 still.csv --train-iters 3 "${balanced[@]}" "${bias[@]}" 0
run 1,1,1,0 other.csv --train-iters 3 "${balanced[@]}" "${bias[@]}" 0.1
! "$bin/plot_loss" --tolerance 1e-6 still.csv other.csv >plot.log 2>&1 || fail "a router's bias does not move"

# Every token of a step goes to two of the experts, on one rank as on four.
for mesh in 1,1,1,0 1,2,2,1; do
  run $mesh /dev/null --train-iters 4 "${balanced[@]}" --moe-per-layer-logging --log-interval 4
  grep 'tokens of each expert' log >"tokens-$mesh"
  awk '{sum = 0; for (i = 7; i <= NF; ++i) sum += $i; if (sum != 2 * 6 * 16 || NF != 12) bad = 1} END {exit bad || NR != 2}' "tokens-$mesh" ||
    fail "tokens of experts: $(cat "tokens-$mesh")"
done
cmp tokens-1,1,1,0 tokens-1,2,2,1 || fail "the experts have other tokens on another mesh"
echo "ok: 192 choices in each of $(wc -l <tokens-1,1,1,0) layers, the same ones on one rank and on four"

# Stopped at 5, 10 and 15, on four meshes.
run 1,2,2,1 parts.csv "${balanced[@]}" --train-iters 25 --save ckpt --exit-interval 5
convert ckpt global_step5
run 4,1,1,3 parts.csv "${balanced[@]}" --train-iters 25 --load ckpt --universal-checkpoint --save ckpt2 --exit-interval 5
run 2,1,2,2 parts.csv "${balanced[@]}" --train-iters 25 --load ckpt2 --save ckpt3 --exit-interval 5
convert ckpt2 global_step10
convert ckpt3 global_step15
"$bin/ckpt" verify ckpt3/global_step15_universal >verify.log || fail "$(cat verify.log)"
for folder in ckpt/global_step5 ckpt3/global_step15_universal; do
  "$bin/ckpt" inspect $folder >inspect.log
  grep -q '\.mlp\.experts\.w1 .* 6 experts along dim 0' inspect.log || fail "$(grep experts inspect.log)"
done
run 1,1,1,0 parts.csv "${balanced[@]}" --train-iters 25 --load ckpt3 --universal-checkpoint
close one.csv parts.csv 1e-5 1 "experts, on four meshes one after the other"
run 1,3,1,1 again.csv "${balanced[@]}" --train-iters 15 --load ckpt2 --universal-checkpoint --save ckpt4
run 4,1,1,0 moved.csv "${balanced[@]}" --train-iters 10 --load ckpt2 --universal-checkpoint --save ckpt5
"$bin/ckpt" diff ckpt2/global_step10 ckpt5/global_step10 >diff.log || fail "$(cat diff.log)"
echo "ok: a state that moved to another mesh and was saved there: $(tail -1 diff.log)"
