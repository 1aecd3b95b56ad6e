#!/usr/bin/env bash
# Looks into a checkpoint of tp 2 x pp 2 x dp 2, follows one parameter through it and through the universal format, and resumes on
# five other meshes. Two of them save in their turn, which shows how they cut the parameter, and that they end with the same bytes.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ckpt ds_to_universal plot_figure
ask 0 "How many files hold the optimizer state of tp 2 x pp 2 x dp 2?" 'find "$tag" -name "zero_pp_rank_*" | wc -l'
part() { grep -o 'W.flat.0:[0-9]*' "$out/follow.log" | head -1 | cut -d : -f 2; }
ask 0 "How many of the 64 x 256 elements of W does each rank of dp 4 hold at ZeRO 3?" part
half=$((steps / 2))
recipe+=(--same-bits --make-vocab-size-divisible-by 64)  # 256 tokens in 4 blocks
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

# go_on MESH RUN FLAGS...: checks that all losses are those of the uninterrupted run, in every digit.
go_on() {
  train "$@"
  say "$2: loss $(ends "$2"); uninterrupted $(ends whole)"
  bitwise whole "$2" "$2"
}

# same_bytes FOLDER: compares the converted end of a run with that of the uninterrupted one, file by file.
same_bytes() {
  local file files=0
  convert "$1/global_step$steps" "$1/universal/global_step${steps}_universal"
  for file in "$out"/end/zero/*.*/*.pt; do
    cmp "$file" "$1/universal/global_step${steps}_universal/${file#"$out"/end/}" || fail "$1: not the same bytes"
    files=$((files + 1))
  done
  show cmp "$out/end/zero/$parameter/fp32.pt" "$1/universal/global_step${steps}_universal/zero/$parameter/fp32.pt"
  say "ok: all $files files of weights and moments are the same bytes"
}
convert "$out/checkpoints/global_step$steps" "$out/end"
curves=("tp2-pp2-dp2, uninterrupted=$out/whole.csv")
for mesh in 1,1,1,0 1,4,1,0 4,1,1,1 1,1,4,3 1,2,2,2; do
  run=$(name $mesh)
  save=()
  [[ $mesh != 4,1,1,1 && $mesh != 1,1,4,3 ]] || save=(--save "$out/$run")
  go_on $mesh "$run" --load "$out/universal" --universal-checkpoint "${save[@]}"
  [[ -z ${save[*]} ]] || { follow "$out/$run/global_step$steps"; same_bytes "$out/$run"; }
  curves+=("$run=$out/$run.csv")
done
go_on 1,2,2,2 direct --load "$out/checkpoints" --load-tag global_step$half
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" \
    --title "Saved at step $half on tp2-pp2-dp2, resumed on five other meshes" "${curves[@]}"
