#!/usr/bin/env bash
# The new model in this folder gets the GPT's meshes, ZeRO stages and kinds of checkpoint.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs pretrain_mlp generate_mlp export_mlp ds_to_universal zero_to_fp32 ckpt
ask 0 "How many parameters has the model, with tables for 3 tokens, 4 layers, a norm and a head, for 256 tokens?" 'parameters one'
ask 0 "How many parameters has the largest of 4 stages, the first?" 'sed -n "s/^model: .* \([0-9]*\) on a rank.*/\1/p" "$out/pp4.log"'
program=pretrain_mlp
model=(--num-layers 4 --hidden-size 64 --seq-length 32)
half=$((steps / 2))

train 1,1,1,0 one
say "one process: loss $(loss one 1) at step 1, $(loss one 60) at step 60"
train 1,4,1,0 pp4
bitwise one pp4 "pp 4 against one process"
train 2,1,1,0 tp2 --sequence-parallel
close one tp2 1e-5 "tp 2 with --sequence-parallel against one process"
train 1,1,2,3 zero3 --activation-checkpointing
close one zero3 1e-5 "dp 2, ZeRO 3, --activation-checkpointing against one process"
train 2,2,2,1 whole --save "$out/checkpoints" --save-interval $half
close one whole 1e-5 "tp 2 x pp 2 x dp 2 against one process"

tag=$out/checkpoints/global_step$half
convert "$tag" "$out/universal/global_step${half}_universal"
quietly "$out/verify.log" "$bin/ckpt" verify "$tag"
quietly "$out/diff.log" "$bin/ckpt" diff "$tag" "$out/universal/global_step${half}_universal"
say "ckpt diff: $(tail -1 "$out/diff.log")"

# Draws the units of each rank from the checkpoint's list: "2.up.weight  float32 [256, 64]  tp along dim 0; pp 0; ...".
"$bin/ckpt" inspect "$tag" | awk '
  /^  [0-9]+[.].*; pp [0-9]/ {
    match($0, /\[.*\]/); dims = split(substr($0, RSTART + 1, RLENGTH - 2), dim, ", ")
    for (size = d = 1; d <= dims; ++d) size *= dim[d]
    unit = $1 + 0; match($0, /; pp [0-9]+/); stage[unit] = substr($0, RSTART + 5, RLENGTH - 5) + 0
    whole[unit] += size; part[unit] += / tp along/ ? size / 2 : size; if (unit > last) last = unit
  }
  function cell(unit) {return (unit == 1 ? "t" : unit == last ? "h" : "l") unit}
  END {
    line = "whole:"; for (u = 1; u <= last; ++u) line = line " " cell(u) "*" whole[u]
    print line
    for (pp = 0; pp < 2; ++pp) for (tp = 0; tp < 2; ++tp) {
      line = "pp " pp ", tp " tp ":"
      for (u = 1; u <= last; ++u) {
        mine = cell(u) "*" part[u]; other = ".*" whole[u] - part[u]
        line = line " " (stage[u] != pp ? ".*" whole[u] : tp ? other " " mine : mine " " other)
      }
      print line
    }
    print "t = unit of tables\nl = unit of a layer\nh = unit of the head"
  }' >"$out/units.txt"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/units.svg" \
    --title "The units on tp 2 x pp 2, as long as their parameters" "$out/units.txt"
for mesh in 1,1,1,0 4,1,1,0 1,2,2,2; do
  run=$(name $mesh)
  train $mesh "$run" --load "$out/universal" --universal-checkpoint
  close whole "$run" 1e-5 "saved on tp2-pp2-dp2, resumed on $run"
done
train 2,2,2,1 same --load "$out/checkpoints" --load-tag global_step$half
bitwise whole same "resumed on tp2-pp2-dp2, as saved"

# text FLAGS...: prints the likeliest ten numbers behind a prompt.
text() {
  show "$bin/generate_mlp" --tokenizer-type NullTokenizer --prompts "15 7 30" --num-tokens-to-generate 10 --temperature 0 "$@"
  "$bin/generate_mlp" --tokenizer-type NullTokenizer --prompts "15 7 30" --num-tokens-to-generate 10 --temperature 0 "$@" \
      >"$out/text.txt" 2>"$out/generate.log" || { cat "$out/generate.log" >&2; fail "no text"; }
  say "$(tail -1 "$out/text.txt")"
}
text --load "$out/checkpoints" --load-tag global_step$half
cp "$out/text.txt" "$out/first.txt"
text --load "$out/universal" --window 3
cmp "$out/first.txt" "$out/text.txt" || fail "another text from the universal folder, with the last three tokens"
say "ok: the same text from the universal folder, and from the last three tokens alone"

quietly "$out/export.log" "$bin/export_mlp" "$tag" "$out/hugging_face"
quietly "$out/export.log" "$bin/export_mlp" "$out/universal" "$out/from_universal"
for file in config.json model.safetensors; do
  cmp "$out/hugging_face/$file" "$out/from_universal/$file" || fail "another $file from the universal folder"
done
quietly "$out/fp32.log" "$bin/zero_to_fp32" --safe_serialization "$tag" "$out/fp32"
python3 - "$out" "${model[1]}" <<'END' || fail "export_mlp and zero_to_fp32 differ"
import json, sys
out, layers = sys.argv[1], int(sys.argv[2])

def tensors(folder):
    with open(f"{out}/{folder}/model.safetensors", "rb") as file:
        header, data = json.loads(file.read(int.from_bytes(file.read(8), "little"))), file.read()
    return {name: (t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items() if name != "__metadata__"}

def exported(name):
    first, rest = name.split(".", 1)
    if first == "1":
        return rest.replace("tables", "embeddings")
    if first == str(layers + 2):
        return rest.replace("head", "lm_head")
    return f"layers.{int(first) - 2}.{rest}".replace("up.", "up_proj.").replace("down.", "down_proj.")

sys.exit({exported(name): tensor for name, tensor in tensors("fp32").items()} != tensors("hugging_face"))
END
say "$(cat "$out/hugging_face/config.json")"
say "ok: the tensors of zero_to_fp32 under the export's names, and the same files from the universal folder"
