#!/usr/bin/env bash
# Resumes Megatron-DeepSpeed's runs on other meshes, with their flags, checkpoint and data, and gets their losses.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ds_to_universal ckpt
slice() {
  "$bin/ckpt" inspect "$bf16/checkpoint" --parameter 2.mlp.dense_4h_to_h.weight |
    sed -n 's/.*tp 0 has .*shape .\([0-9]*\), \([0-9]*\).*/\1 x \2/p'
}
ask 0 "Which shape has the slice of each of two tp ranks of the MLP's second matrix, 64 x 256?" slice
ask 0 "How many tensors does ckpt diff compare for 52 parameters, with AdamW's state?" \
    'grep -o "[0-9]* tensors" "$out/diff.log" | cut -d " " -f 1'
fixtures=tests/fixtures
for archive in z1-bf16-tp2pp2dp1 z1-fp32-tp2pp2dp1-universal; do
  quietly "$out/tar.log" tar xf "$fixtures/megatron/$archive.tar.xz" -C "$out"
done
bf16=$out/z1-bf16-tp2pp2dp1 fp32=$out/z1-fp32-tp2pp2dp1
universal=global_step10_universal

quietly "$out/inspect.log" "$bin/ckpt" inspect "$bf16/checkpoint"
say "ckpt inspect: $(sed -n '/^ordinary checkpoint/,/^  iteration/p' "$out/inspect.log" | xargs)"
convert "$bf16/checkpoint/global_step10" "$out/converted/$universal"
quietly "$out/diff.log" "$bin/ckpt" diff "$out/converted/$universal" "$bf16/universal/$universal"
say "ckpt diff with the folder of DeepSpeed's own ds_to_universal: $(tail -1 "$out/diff.log")"

# Another run's checkpoint has both cuts. Draws where one of its matrices is in the files, and how it is put together.
quietly "$out/tar.log" tar xf "$fixtures/megatron/z2-bf16-tp2dp2-nopipe.tar.xz" -C "$out"
pieces=$out/z2-bf16-tp2dp2-nopipe/checkpoint
quietly "$out/inspect.log" "$bin/ckpt" inspect "$pieces" --parameter language_model.encoder.layers.1.mlp.dense_h_to_4h.weight
"$bin/ckpt" inspect "$pieces" | awk '
  FNR == NR {if (/single_partition_of_fp32_groups/) {getline; gsub(/[^0-9 ]/, ""); partition = $NF} next}
  /^fp32:/ {weights = 1} /^exp_avg:/ {weights = 0}
  weights && /flat/ { # pp 0, tp 0, dp 1  S0.flat[3072:8192]: it ends its partition, or begins it
    split($0, word, /[^0-9]+/); tp = word[3]; dp = word[4]; begin = word[6]; count = word[7] - begin
    piece = (tp ? "b" : "a") dp "*" count; rest = ".*" (partition - count)
    files = files (files ? " |*4000 " : "") (begin ? piece " " rest : rest " " piece)
    slices = slices (dp || !tp ? " " : " |*1000 ") piece; whole = whole " " piece
  }
  END {print "files: " files "\n~\nslices:" slices "\n~\nW:" whole "\na = of tp rank 0\nb = of tp rank 1"}
' - "$out/inspect.log" >"$out/pieces.txt"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/pieces.svg" \
    --title "From four files to one matrix, with the numbers of the dp ranks" "$out/pieces.txt"

# theirs RUN: prints the losses of Megatron-DeepSpeed's uninterrupted run as a loss CSV.
theirs() {
  awk -F, 'NR == 1 {print "iteration,consumed_samples,lm_loss,learning_rate,grad_norm"; next}
           {print $1 "," 8 * $1 "," $4 "," $2 "," $3}' "$1/losses.csv"
}
# follow RUN MESH NAME TOLERANCE FLAGS...: continues RUN with its flags, except those for the mesh and the saves.
follow() {
  read -ra model <<<"$(sed -E 's/--(save|save-interval|deepspeed_config|zero-stage|(tensor|pipeline)-model-parallel-size) [^ ]+//g
                               s|data/|'$fixtures'/data/|g; s/ --bf16//' "$1/flags.txt")"
  data=() recipe=(--device cpu)
  local precision; precision=$(grep -o -- --bf16 "$1/flags.txt" || true)
  train "$2" "$3" ${precision:+"$precision"} "${@:5}"
  theirs "$1" >"$out/theirs.csv"
  local run
  for run in theirs "$3"; do say "$run: loss $(loss "$run" 11) at step 11, $(loss "$run" 20) at step 20"; done
  close theirs "$3" "$4" "$3: tp,pp,dp,zero = $2 against tp 2 x pp 2 of Megatron-DeepSpeed"
}
follow "$bf16" 2,2,1,1 bf16 1e-3 --load "$bf16/checkpoint"
follow "$bf16" 1,1,2,3 bf16-converted 1e-3 --load "$out/converted" --universal-checkpoint
follow "$fp32" 1,4,1,2 fp32 1e-6 --load "$fp32/universal" --universal-checkpoint
