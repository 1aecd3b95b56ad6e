#!/usr/bin/env bash
# Resumes a checkpoint of tp 2 x pp 2 on five other meshes, through the universal format and directly.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
half=$((steps / 2))

train 2,2,1,0 whole --save "$out/checkpoints" --save-interval $half
tag=$out/checkpoints/global_step$half
convert "$tag" "$out/universal/global_step${half}_universal"
quietly "$out/diff.log" "$bin/ckpt" diff "$tag" "$out/universal/global_step${half}_universal"
say "ckpt diff: $(tail -1 "$out/diff.log")"

train 2,2,1,0 same --load "$out/checkpoints" --load-tag global_step$half
bitwise whole same "resumed on tp2-pp2-dp1, as saved"

ends() { echo "$(loss "$1" $((half + 1))) at step $((half + 1)), $(loss "$1" $steps) at step $steps"; }

# go_on MESH RUN FLAGS...: checks the first loss to 1e-6 and all losses to 1e-4.
go_on() {
  train "$@"
  say "$2: loss $(ends "$2"); uninterrupted $(ends whole)"
  quietly "$out/first.log" "$bin/plot_loss" --first-tolerance 1e-6 "$out/whole.csv" "$out/$2.csv"
  close whole "$2" 1e-4 "$2"
}
curves=("tp2-pp2-dp1, uninterrupted=$out/whole.csv")
for mesh in 1,1,1,0 1,4,1,0 4,1,1,0 1,1,4,3 1,2,2,2; do
  run=$(name $mesh)
  go_on $mesh "$run" --load "$out/universal" --universal-checkpoint
  curves+=("$run=$out/$run.csv")
done
go_on 1,2,2,2 direct --load "$out/checkpoints" --load-tag global_step$half
bitwise tp1-pp2-dp2 direct "without conversion against with it"
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" \
    --title "Saved at step $half on tp2-pp2-dp1, resumed on five other meshes" "${curves[@]}"
