#!/usr/bin/env bash
# A mixture of experts: where tokens go without and with a loss that balances them, who holds which expert, what travels, and resumes
# with the experts on other ranks.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ckpt ds_to_universal plot_figure
ask 5% "How many bytes does a rank of ep 2 send by all-to-all in a step of 2 micro-batches of 32 tokens, in 4 layers?" \
    'moved ep2 ep all_to_all'
ask 2% "How many MiB of parameters does a rank of ep 4 keep, if one of ep 1 keeps 1.83, with 1.5 of experts?" 'memory ep4 parameters'
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

# The way of rows in small: six tokens on two ranks, each with two of the experts A to D. A0 is token 0's row for A. Rank 0 has the
# tokens 0 to 2 and the experts A and B.
rows_with() { tr ' ' '\n' <<<"${*:2}" | grep "$1" | sort -s -k 1.1,1.1 | xargs; }  # PATTERN ROWS...: those of it, by expert
moment() { printf '%-11s %-20s | %s\n' "$@" >>"$out/travel.txt"; }
chosen=("A0 C0 A1 B1 B2 D2" "A3 D3 C4 D4 A5 B5")
sorted=("$(rows_with . "${chosen[0]}")" "$(rows_with . "${chosen[1]}")")
at_experts=("$(rows_with '[AB]' "${sorted[@]}")" "$(rows_with '[CD]' "${sorted[@]}")")
back=("$(rows_with '[0-2]' "${at_experts[@]}")" "$(rows_with '[3-5]' "${at_experts[@]}")")
moment chosen: "${chosen[@]}"
moment sorted: "${sorted[@]}"
moment "at experts:" "${at_experts[@]}"
moment back: "${back[@]}"
say "six tokens on two ranks, two rows of each:" "$(cat "$out/travel.txt")"
[[ ${back[*]} == "${sorted[*]}" ]] || fail "a row is not back at its place"
read -ra first <<<"${at_experts[0]}"
read -ra second <<<"${at_experts[1]}"
say "ok: two all-to-alls bring each row back to its place; ${#first[@]} rows were on rank 0, ${#second[@]} on rank 1"
{ printf '%s = expert %s\n' A A B B C C D D; sed '1!i~' "$out/travel.txt"; } >"$out/ways.txt"  # a row is linked to itself in the line before
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/travel.svg" \
    --title "Rows of six tokens on two ranks, to the experts A to D and back" "$out/ways.txt"

# Four ranks, of which 1, 2 or 4 share the experts: of 4 layers, 8 experts, 3 matrices of 64 x 64, 4 bytes an element.
for ep in 1 2 4; do
  train 1,1,4,1 ep$ep --moe-aux-loss-coeff 0.1 --expert-model-parallel-size $ep --report-memory --report-comm
  say "ep $ep: parameters $(memory ep$ep parameters) MiB a rank, loss $(loss ep$ep $steps) at step $steps"
  [[ $ep == 1 ]] || close ep1 ep$ep 1e-5 "ep $ep against ep 1"
  awk -v whole="$(memory ep1 parameters)" -v own="$(memory ep$ep parameters)" -v ep=$ep 'BEGIN {
    apart = whole - 4 * 8 * 3 * 64 * 64 * 4 / 1024 / 1024 * (1 - 1 / ep) - own; exit !(apart < 0.002 && apart > -0.002)}' ||
    fail "with ep $ep a rank does not hold 1 / $ep of the experts"
done
say "ok: a rank holds 1 / ep of the experts' 1.5 MiB"
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
