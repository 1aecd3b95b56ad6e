#!/usr/bin/env bash
# Looks into a checkpoint of tp 2 x pp 2 x dp 2, follows one parameter through it and through the universal format, and resumes on
# five other meshes. Two of them save in their turn, which shows how they cut the parameter.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ckpt ds_to_universal plot_figure
half=$((steps / 2))
parameter=2.mlp.dense_4h_to_h.weight

# list FOLDER: its files. Those that differ only in their numbers or in the parameter share a line, with their size in all.
list() {
  say "$1:"
  say "$(cd "$1" && find . -type f -printf '%P %s\n' | sort -V |
    awk '{kind = name = $1; if (sub(/^zero\/[^\/]*\//, "zero/*/", kind)) name = kind; gsub(/[0-9]+/, "#", kind)
          bytes[kind] += $2; if (++files[kind] == 1) {order[++n] = kind; first[kind] = name}}
         END {for (i = 1; i <= n; ++i) {kind = order[i]
                printf "%4d x %-42s %8.1f kB\n", files[kind], first[kind], bytes[kind] / 1000}}')"
}

# follow FOLDER: shows where the parameter's weights lie, without the moments.
follow() {
  quietly "$out/follow.log" "$bin/ckpt" inspect "$1" --parameter $parameter
  say "$(awk '/^W = /,/^exp_avg:/{if (NF && !/^exp_avg:/) print}' "$out/follow.log")"
}

# read_first: reads the first elements of what `follow` showed, by the command that it printed.
read_first() {
  say "its first elements: $(eval "$(sed -n 's/^This prints the first: //p' "$out/follow.log")" | sed 's/^0*0 *//; q')"
}

train 2,2,2,2 whole --save "$out/checkpoints" --save-interval $half
tag=$out/checkpoints/global_step$half
universal=$out/universal/global_step${half}_universal
list "$tag"
follow "$tag"
read_first
quietly "$out/plot.log" "$bin/plot_figure" checkpoint --output "$out/files.svg" "$tag"
quietly "$out/plot.log" "$bin/plot_figure" checkpoint --output "$out/pieces.svg" --parameter $parameter "$tag"

convert "$tag" "$universal"
list "$universal"
follow "$universal"
read_first
quietly "$out/diff.log" "$bin/ckpt" diff "$tag" "$universal"
say "$(tail -1 "$out/diff.log")"

train 2,2,2,2 same --load "$out/checkpoints" --load-tag global_step$half
bitwise whole same "resumed on tp2-pp2-dp2, as saved"

ends() { echo "$(loss "$1" $((half + 1))) at step $((half + 1)), $(loss "$1" $steps) at step $steps"; }

# go_on MESH RUN FLAGS...: checks the first loss to 1e-6 and all losses to 1e-4.
go_on() {
  train "$@"
  say "$2: loss $(ends "$2"); uninterrupted $(ends whole)"
  quietly "$out/first.log" "$bin/plot_loss" --first-tolerance 1e-6 "$out/whole.csv" "$out/$2.csv"
  close whole "$2" 1e-4 "$2"
}
curves=("tp2-pp2-dp2, uninterrupted=$out/whole.csv")
for mesh in 1,1,1,0 1,4,1,0 4,1,1,1 1,1,4,3 1,2,2,2; do
  run=$(name $mesh)
  save=()
  [[ $mesh != 4,1,1,1 && $mesh != 1,1,4,3 ]] || save=(--save "$out/$run")
  go_on $mesh "$run" --load "$out/universal" --universal-checkpoint "${save[@]}"
  [[ -z ${save[*]} ]] || follow "$out/$run/global_step$steps"
  curves+=("$run=$out/$run.csv")
done
go_on 1,2,2,2 direct --load "$out/checkpoints" --load-tag global_step$half
bitwise tp1-pp2-dp2 direct "without conversion against with it"
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" \
    --title "Saved at step $half on tp2-pp2-dp2, resumed on five other meshes" "${curves[@]}"
