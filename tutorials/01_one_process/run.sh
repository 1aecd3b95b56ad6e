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

# level NAME LOSS: writes a curve of this loss at every step.
level() { awk -F, -v OFS=, -v loss="$2" 'NR > 1 {$3 = loss} 1' "$out/one.csv" >"$out/$1.csv"; }
level uniform 5.545  # ln 256
level symbols 4.159  # ln 64
level floor 0.883    # see framework/data/mock_dataset.h
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" --title "One process" "one process=$out/one.csv" \
    "ln 256=$out/uniform.csv" "ln 64=$out/symbols.csv" "floor 0.883=$out/floor.csv"
