#!/usr/bin/env bash
# A mixture of experts: where tokens go without and with a loss that balances them, who holds which expert, what travels, and resumes
# with the experts on other ranks.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ckpt ds_to_universal plot_figure
half=$((steps / 2)) experts=8
model+=(--swiglu --disable-bias-linear --num-experts $experts --moe-router-topk 2 --moe-ffn-hidden-size 64)

# tokens RUN: writes RUN.tokens.csv, the tokens of each expert in the last step, by layer. Shows the share of the busiest expert of
# all layers.
tokens() {
  grep 'tokens of each expert' "$out/$1.log" | tail -4 | awk -v file="$out/$1.tokens.csv" '
    {layers = layers ",layer " NR - 1; for (i = 7; i <= NF; ++i) {row[i - 7] = row[i - 7] "," $i; sum += $i; if ($i > most) most = $i}}
    END {print "expert" layers >file; for (e = 0; e < NF - 6; ++e) print e row[e] >file
         printf "%.1f %% of the choices in a layer fell on the busiest expert, %.1f times the mean\n", 100 * most * NR / sum, most * (NF - 6) * NR / sum}'
}

# bars RUN TITLE
bars() { quietly "$out/plot.log" "$bin/plot_figure" bars --output "$out/$1.svg" --title "$2" "$out/$1.tokens.csv"; }

train 1,1,1,0 free --moe-per-layer-logging
free=$(tokens free)
say "without balance: $free"
train 1,1,1,0 balanced --moe-per-layer-logging --moe-aux-loss-coeff 0.1
balanced=$(tokens balanced)
say "with it:         $balanced; loss $(loss balanced $steps), without $(loss free $steps)"
awk -v free="$free" -v balanced="$balanced" 'BEGIN {exit !(balanced + 0 < free + 0)}' || fail "the loss that balances does not balance"
say "ok: the busiest expert has a smaller share"
bars free "Tokens of each expert in step $steps, without balance"
bars balanced "Tokens of each expert in step $steps, with --moe-aux-loss-coeff 0.1"

# Four ranks, of which 1, 2 or 4 share the experts.
for ep in 1 2 4; do
  train 1,1,4,1 ep$ep --moe-aux-loss-coeff 0.1 --expert-model-parallel-size $ep --report-memory --report-comm
  say "ep $ep: parameters $(memory ep$ep parameters) MiB a rank, loss $(loss ep$ep $steps) at step $steps"
  [[ $ep == 1 ]] || close ep1 ep$ep 1e-5 "ep $ep against ep 1"
done
say "what a step of ep2 communicates:"
traffic ep2

# Saved with the experts on two ranks, resumed with them on four, on one, and cut by tensor parallelism.
train 1,1,4,1 saved --moe-aux-loss-coeff 0.1 --expert-model-parallel-size 2 --save "$out/checkpoints" --exit-interval $half
tag=$out/checkpoints/global_step$half
say "$(find "$tag" -name 'layer_*_expert_*' | wc -l) files of experts, the first of them $(find "$tag" -name 'layer_*_expert_*' -printf '%f\n' | sort -V | head -1)"
convert "$tag" "$out/universal/global_step${half}_universal"
quietly "$out/diff.log" "$bin/ckpt" diff "$tag" "$out/universal/global_step${half}_universal"
say "$(tail -1 "$out/diff.log")"
train 1,1,4,3 on_four --moe-aux-loss-coeff 0.1 --expert-model-parallel-size 4 --load "$out/checkpoints"
close ep2 on_four 1e-5 "ep 2 to ep 4, directly"
train 1,2,1,0 on_one --moe-aux-loss-coeff 0.1 --load "$out/universal" --universal-checkpoint
close ep2 on_one 1e-5 "ep 2 to two stages without expert parallelism"
train 2,1,2,1 on_tp --moe-aux-loss-coeff 0.1 --expert-model-parallel-size 2 --load "$out/universal" --universal-checkpoint
close ep2 on_tp 1e-5 "ep 2 to tp 2 x ep 2"
