# Builds the projects of examples/ against an installed tree that was moved after its installation. external trains the same on one
# rank and on two, and the installed tools read its checkpoints. format links the format library alone, and reads the same norms from
# a checkpoint and from what the tools make of it. vision brings a model, data, a schedule, a metric and an evaluation: it trains
# alike on each mesh, resumes on another, and learns.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" "$1"

{ cmake --install "$bin/.." --prefix "$scratch/built" && mv built installed; } >install.log 2>&1 || fail "$(tail -5 install.log)"
started=$SECONDS
{ cmake -G Ninja -S "$here/../../examples/external" -B build -DCMAKE_PREFIX_PATH="$scratch/installed" &&
  cmake --build build; } >build.log 2>&1 || fail "$(tail -20 build.log)"
echo "ok: an external project builds in $((SECONDS - started)) s"

for ranks in 1 2; do
  "$here/../../tools/mpirun.sh" $ranks build/train "checkpoints$ranks" >"$ranks.log" 2>&1 || fail "$ranks ranks: $(tail -5 "$ranks.log")"
  installed/bin/ckpt verify "checkpoints$ranks/global_step10" >verify.log 2>&1 || fail "$(tail -5 verify.log)"
done
paste -d' ' <(grep ^step 1.log) <(grep ^step 2.log) | awk '
  {d = ($4 - $8) / $4; if (d < 0) d = -d; if (d > max) max = d; n += $2 == $6}
  END {printf "losses of 1 and 2 ranks: max relative difference %.1e over %d steps\n", max, n; exit !(n == 10 && max < 1e-5)}' ||
  fail "losses of one rank and two: $(cat 1.log 2.log)"
installed/bin/pretrain_gpt --help >help.log 2>&1 && grep -q -- --zero-stage help.log || fail "the installed pretrain_gpt: $(tail -5 help.log)"
echo "ok: it trains alike on one rank and two"

example=$here/../../examples/format
{ cmake -G Ninja -S "$example" -B format -DCMAKE_PREFIX_PATH="$scratch/installed" -DCMAKE_BUILD_TYPE=Release &&
  cmake --build format; } >format.log 2>&1 || fail "$(tail -20 format.log)"
bash "$here/../style/linked_libraries.sh" format/norms >linked.log || fail "$(cat linked.log)"
convert checkpoints2 global_step10
installed/bin/zero_to_fp32 checkpoints2 weights >export.log 2>&1 || fail "$(tail -5 export.log)"
for folder in checkpoints2 checkpoints2/global_step10_universal weights; do
  format/norms $folder >"${folder##*/}.norms" 2>&1 || fail "$folder: $(tail -5 "${folder##*/}.norms")"
  cmp checkpoints2.norms "${folder##*/}.norms" || fail "norms of $folder"
done
# 128 x 32 numbers of standard deviation 0.02 have a norm of 1.28. Ten steps at 1e-3 change each by about 0.01, the norm by less
# than 0.64.
awk '$1 == "2.mlp.dense_h_to_4h.weight" && $2 $3 == "[128,32]" && $4 > 0.64 && $4 < 1.92 {found = 1} END {exit !found}' checkpoints2.norms ||
  fail "norms: $(cat checkpoints2.norms)"
! format/norms installed >missing.log 2>&1 && grep -q '^norms: installed: is no checkpoint' missing.log || fail "no checkpoint: $(cat missing.log)"
shown=$(sed -n '/^```cpp$/,/^```$/p' "$here/../../framework/format/README.md" | sed '/^```/d')
[[ $shown && $(<"$example/main.cpp") == *"$shown"* ]] || fail "framework/format/README.md shows another program than $example/main.cpp"
echo "ok: the format library reads $(wc -l <checkpoints2.norms) parameters without LibTorch and MPI"

# One source file has all, so that LibTorch's headers are parsed once.
started=$SECONDS
{ cmake -G Ninja -S "$here/../../examples/vision" -B vision -DCMAKE_PREFIX_PATH="$scratch/installed" -DCMAKE_UNITY_BUILD=ON &&
  cmake --build vision; } >vision.log 2>&1 || fail "$(tail -20 vision.log)"
echo "ok: a trainer of images builds in $((SECONDS - started)) s"
# vit NAME FLAGS...: 60 steps, with their losses in NAME.csv and their lines in NAME.log.
vit() {
  vision/pretrain_vit --train-iters 60 --global-batch-size 32 --micro-batch-size 4 --lr 5e-3 --eval-interval 30 --eval-iters 4 \
      --log-interval 10 --device cpu --loss-csv "$1.csv" "${@:2}" >"$1.log" 2>&1
}
pp_dp=(--local-ranks 4 --pipeline-model-parallel-size 2 --zero-stage 1)
vit images --tensorboard-dir images.tb --save images --save-interval 30 --verify-resume || fail "$(tail -5 images.log)"
vit sliced --local-ranks 4 --tensor-model-parallel-size 2 --zero-stage 3 || fail "$(tail -5 sliced.log)"
vit piped "${pp_dp[@]}" || fail "$(tail -5 piped.log)"
convert images global_step30
cp images.csv again.csv && cp images.jsonl again.jsonl
vit again "${pp_dp[@]}" --load images --universal-checkpoint --verify-resume || fail "$(tail -5 again.log)"
for run in sliced piped again; do
  "$bin/plot_loss" --tolerance 1e-5 images.csv $run.csv >plot.log || fail "$run: $(cat plot.log)"
done
grep -q '^verify-resume: .* relative difference' again.log || fail "no losses compared: $(cat again.log)"
python3 - images sliced piped again <<'END' || fail "metrics"
import csv, glob, json, re, sys
for run in sys.argv[1:]:
    rows, log = list(csv.DictReader(open(f"{run}.csv"))), open(f"{run}.log").read()
    accuracies = [float(row["accuracy"]) for row in rows]
    assert len(rows) == 60 and all(a * 32 == int(a * 32) for a in accuracies), accuracies  # of 32 images
    for row in rows:
        samples = 32 * (int(row["iteration"]) - 1)
        factor = (samples + 1) / 160 if samples < 160 else (160 / samples) ** 0.5
        assert abs(float(row["learning_rate"]) - 5e-3 * factor) < 1e-10, row
    assert sum(accuracies[:3]) / 3 < 0.5 and sum(accuracies[-5:]) / 5 > 0.9, accuracies
    assert f"accuracy {accuracies[-1]:.4g}" in log.split("iter 60/60")[1].split("\n")[0], log
    record = [json.loads(line) for line in open(f"{run}.jsonl") if line.strip()]
    steps = {e["iteration"]: e["metrics"]["accuracy"] for e in record if e["event"] == "step"}
    assert [steps[i + 1] for i in range(60)] == accuracies
    found = re.findall(r"^validation at iteration (\d+): accuracy (\S+)$", log, re.M)
    assert [i for i, _ in found] == (["60"] if run == "again" else ["30", "60"]) and float(found[-1][1]) > 0.9, found
    evaluations = [e["metrics"]["accuracy"] for e in record if e["event"] == "evaluation"]
    assert evaluations[-1] == float(found[-1][1]) and "\nvalidation loss" not in log, log
events = open(glob.glob("images.tb/*")[0], "rb").read()
assert events.count(b"\x0a\x08accuracy\x15") == 60 and events.count(b"accuracy validation") == 2
END
# refused MESSAGE FLAGS...
refused() { ! vit refused "${@:2}" && grep -qF -- "$1" refused.log || fail "${*:2}: $(cat refused.log)"; }
refused '--data-path x: this program brings data of its own; leave the flag out' --data-path x
refused '--lr-decay-style cosine: this program brings a learning-rate schedule of its own' --lr-decay-style cosine
refused 'seed: checkpoint 1234, this run 5' --load images --seed 5
head -1 images.csv | sed s/accuracy/error/ >refused.csv
refused 'it has the columns iteration,consumed_samples,lm_loss' --load images
echo "ok: it trains alike on three meshes, resumes on another, and classifies $(tail -1 images.csv | cut -d, -f9) of a step's images"

# Makes the fork of docs/fork.md as the page says, but with shorter runs.
page=$here/../../docs/fork.md
excerpt() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$page" | sed '/^```/d'; }
mkdir fork && (cd "$here/../.." && cp -r --parents models tools/hf/gpt pretrain_gpt.cpp "$scratch/fork")
mv fork/pretrain_gpt.cpp fork/pretrain_mine.cpp
excerpt cpp | awk '$1 == "//" && $2 ~ /^[a-z_]+[.]cpp:$/ {file = "fork/" substr($2, 1, length($2) - 1)} {print >file}'
excerpt cmake >fork/CMakeLists.txt
excerpt diff | patch -d fork -p1 >patch.log || fail "the diff of docs/fork.md: $(cat patch.log)"
! grep -E 'fuzz|FAILED' patch.log || fail "the diff of docs/fork.md no longer fits"
# Beside it, the optimizer of lesson 18.
cp "$here/../../tutorials/18_new_optimizer/pretrain_signum.cpp" fork
printf '%s\n' 'add_executable(pretrain_signum pretrain_signum.cpp)' 'target_link_libraries(pretrain_signum PRIVATE my_gpt)' >>fork/CMakeLists.txt
# LibTorch's headers are parsed once, which is most of the work.
cat >once.cmake <<'END'
cmake_language(DEFER CALL target_precompile_headers my_gpt PRIVATE <torch/types.h>)
cmake_language(DEFER CALL target_precompile_headers pretrain_mine REUSE_FROM my_gpt)
cmake_language(DEFER CALL target_precompile_headers generate_mine REUSE_FROM my_gpt)
cmake_language(DEFER CALL target_precompile_headers pretrain_signum REUSE_FROM my_gpt)
END
{ cmake -G Ninja -S fork -B fork/build -DCMAKE_PREFIX_PATH="$scratch/installed" -DCMAKE_PROJECT_MyGpt_INCLUDE="$scratch/once.cmake" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 &&
  cmake --build fork/build; } >fork.log 2>&1 || fail "$(tail -20 fork.log)"
# mine FLAGS...: ten steps of the fork, or of another program in it.
mine() {
  "fork/build/${program:-pretrain_mine}" --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 \
      --mock-data --vocab-size 50 --global-batch-size 8 --micro-batch-size 2 --lr 1e-2 --eval-iters 0 --device cpu "$@" >mine.log 2>&1
}
mine --mlp-scale --train-iters 10 --loss-csv one.csv --save one --save-interval 5 || fail "$(tail -5 mine.log)"
mine --train-iters 10 --loss-csv without.csv || fail "$(tail -5 mine.log)"
mine --mlp-scale --train-iters 10 --loss-csv four.csv --local-ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --zero-stage 3 ||
  fail "$(tail -5 mine.log)"
convert one global_step5
mine --mlp-scale --train-iters 10 --loss-csv resumed.csv --local-ranks 4 --pipeline-model-parallel-size 2 --zero-stage 1 \
    --load one --universal-checkpoint || fail "$(tail -5 mine.log)"
for run in four resumed; do
  "$bin/plot_loss" --tolerance 1e-5 one.csv $run.csv >plot.log || fail "$run: $(cat plot.log)"
done
! "$bin/plot_loss" --tolerance 1e-5 one.csv without.csv >plot.log 2>&1 || fail "--mlp-scale changes no loss"
! mine --train-iters 10 --load one && grep -q 'made with mlp_scale = True, this run has False; see --mlp-scale' mine.log || fail "a load without the flag: $(cat mine.log)"
installed/bin/ckpt inspect one/global_step5_universal >inspected.log && grep -q ' 2\.mlp\.scale ' inspected.log || fail "no 2.mlp.scale in the universal folder"
! installed/bin/hf_convert export one hf >hf.log 2>&1 && grep -q '2\.mlp\.scale' hf.log || fail "hf_convert: $(cat hf.log)"
echo "ok: a fork of the GPT trains alike on one rank and on four, and resumes on another mesh"

program=pretrain_signum
mine --train-iters 10 --loss-csv signum.csv --save signum --save-interval 5 || fail "$(tail -5 mine.log)"
mine --train-iters 10 --loss-csv four.csv --local-ranks 4 --tensor-model-parallel-size 2 --zero-stage 3 || fail "$(tail -5 mine.log)"
mine --train-iters 10 --loss-csv resumed.csv --local-ranks 4 --pipeline-model-parallel-size 2 --zero-stage 1 --load signum \
    --load-tag global_step5 || fail "$(tail -5 mine.log)"
for run in four resumed; do
  "$bin/plot_loss" --tolerance 1e-5 signum.csv $run.csv >plot.log || fail "Signum, $run: $(cat plot.log)"
done
! mine --train-iters 10 --load signum --optimizer lion && grep -q 'of Signum, and this run.s Lion cannot go on' mine.log ||
  fail "a load by Lion: $(cat mine.log)"
unset program
echo "ok: an optimizer of its own, on one rank and on four, and resumed on another mesh"

# Its text and its export are those of any checkpoint of the run. The exported GPT-2 has each scale in the matrix and bias before
# it, and writes the same text.
# text PROGRAM FOLDER FLAGS...: prints the likeliest twelve tokens.
text() { "$1" --load "${@:2}" --tokenizer-type NullTokenizer --prompts "1 2 3" --num-tokens-to-generate 12 --temperature 0 2>text.log; }
text fork/build/generate_mine one --load-tag global_step10 >first.txt || fail "generate_mine: $(cat text.log)"
convert one global_step10
text fork/build/generate_mine one --load-tag global_step10_universal | cmp - first.txt ||
  fail "another text from the universal folder: $(cat text.log)"
for tag in global_step10 global_step10_universal; do
  fork/build/export_mine one gpt2_$tag --tag $tag >export.log 2>&1 || fail "export_mine: $(tail -5 export.log)"
  cmp gpt2_$tag/model.safetensors gpt2_global_step10/model.safetensors || fail "another export of $tag"
done
{ installed/bin/zero_to_fp32 one fp32 -t global_step10 --safe_serialization &&
  installed/bin/hf_convert import gpt2_global_step10 imported; } >import.log 2>&1 || fail "$(tail -5 import.log)"
text installed/bin/generate imported | cmp - first.txt || fail "the exported GPT-2 writes another text: $(cat text.log)"
PYTHONPATH=$here python3 - <<'END' || fail "the exported GPT-2 does not have the scaled weights"
import struct
from gather import read_safetensors

def elements(folder):
    tensors = read_safetensors(f"{folder}/model.safetensors").items()
    return {name: struct.unpack(f"<{len(tensor.data) // 4}f", tensor.data) for name, tensor in tensors}

ours, theirs = elements("fp32"), elements("gpt2_global_step10")
for layer in range(2):
    scale = ours[f"{layer + 2}.mlp.scale"]
    assert min(scale) < max(scale), scale
    for kind in "weight", "bias":
        before, after = ours[f"{layer + 2}.mlp.dense_4h_to_h.{kind}"], theirs[f"transformer.h.{layer}.mlp.c_proj.{kind}"]
        columns = len(before) // len(scale)
        scaled = [before[i * columns + j] * scale[i] for j in range(columns) for i in range(len(scale))]
        assert struct.pack(f"<{len(scaled)}f", *scaled) == struct.pack(f"<{len(after)}f", *after), kind
END
echo "ok: its text and its export, from an ordinary and a universal checkpoint"
