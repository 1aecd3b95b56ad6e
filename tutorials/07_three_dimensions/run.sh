#!/usr/bin/env bash
# Compares tp 2 x pp 2 x dp 2 with one process in fp32 and bf16, and runs it in fp16 with a loss scaler.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs plot_figure
at() { # STAGE TP: the rank that the picture has there, for dp 0
  grep -o '<text [^/]*' "$out/mesh.svg" | awk -F'[">]' -v stage="$1" -v tp="$2" '
    $NF == tp "<" && !x {x = $2} $NF == stage "<" {y = $4} sub(/rank /, "", $NF) && $2 == x && $4 == y {print $NF + 0}'
}
ask 0 "Which rank has pp 1, dp 0 and tp 1 on tp 2 x pp 2 x dp 2?" 'at "stage 1" "tp 1"'
ask 2% "How many bytes does one process keep for a parameter in bf16: weight, gradient and optimizer state?" \
    'per_parameter bf16-tp1-pp1-dp1 parameters gradients "optimizer state"'

row() { say "$(printf '%-18s %11s %10s %10s %16s' "$@")"; }
declare -A flags=([fp32]="" [bf16]=--bf16)
runs=()
for precision in fp32 bf16; do
  for mesh in 1,1,1,1 2,2,2,1; do
    runs+=("$precision-$(name $mesh)")
    # shellcheck disable=SC2086
    train $mesh "${runs[-1]}" ${flags[$precision]} --report-memory
  done
done
row "(MiB of a rank)" parameters gradients optimizer "loss at step 60"
for run in "${runs[@]}"; do
  row "$run" "$(memory "$run" parameters)" "$(memory "$run" gradients)" "$(memory "$run" 'optimizer state')" "$(loss "$run" 60)"
done
quietly "$out/plot.log" "$bin/plot_figure" mesh --output "$out/mesh.svg" --title "Who holds what on tp 2 x pp 2 x dp 2 with ZeRO 1" \
    "$out/fp32-tp2-pp2-dp2.log"
close fp32-tp1-pp1-dp1 fp32-tp2-pp2-dp2 1e-5 "fp32, eight ranks against one"
close bf16-tp1-pp1-dp1 bf16-tp2-pp2-dp2 1e-2 "bf16, eight ranks against one"
close fp32-tp1-pp1-dp1 bf16-tp2-pp2-dp2 2e-2 "bf16 on eight ranks against fp32 on one"

# The scale begins at 2^32. Steps that overflow change no weight and lower it.
train 2,2,2,1 scaler --fp16
skipped=$(grep -c ',inf,' "$out/scaler.csv" || true)
((skipped > 0)) || fail "no step overflowed"
scale() { awk -F, -v step="$1" '$1 == step {printf "2^%d", log($6) / log(2) + 0.5}' "$out/scaler.csv"; }
say "--fp16: loss scale $(scale 1) at step 1, $(scale $steps) at step $steps; $skipped steps skipped; loss $(loss scaler $steps) at step $steps"
