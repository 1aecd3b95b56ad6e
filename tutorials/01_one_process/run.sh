#!/usr/bin/env bash
# One process: the reference loss curve, which the same command must repeat.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
ask 0.05 "How large is the loss of step 1, when the model knows nothing yet, in nats?" 'loss one 1'
others() { comm -13 <(cut -d, -f1,3 "$out/one.csv") <(cut -d, -f1,3 "$out/again.csv") | wc -l; }
ask 0 "At how many of the 60 steps has the second run another loss, in any digit?" others

train 1,1,1,0 one
train 1,1,1,0 again
for step in 1 20 40 60; do say "step $step: loss $(loss one $step)"; done
bitwise one again "the same command again"
awk -F, 'NR == 2 {first = $3} END {exit !($3 < first - 1)}' "$out/one.csv" || fail "the loss did not fall by 1"
say "ok: the loss fell"

# 0.883 is explained in framework/data/mock_dataset.h.
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" --title "One process" --level "5.545=ln 256" \
    --level "4.159=ln 64" --level "0.883=floor 0.883" "one process=$out/one.csv"
