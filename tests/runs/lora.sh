#!/usr/bin/env bash
# Adapters (--lora-rank) train beside a frozen model on any mesh. Losses are those of one process: bit for bit where pp or ZeRO alone
# differ, to rounding else. A save may leave the model out: it then takes what the adapter takes, and resumes on any mesh beside
# --pretrained-checkpoint. The model stays as it is, bit for bit. Loads that would lose one of the two are refused.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

says() { grep -q -e "$1" log || fail "expected '$1': $(cat log)"; }

model+=(--num-layers 3 --lr 3e-3 --min-lr 3e-4 --lr-warmup-iters 2 --lr-decay-iters 12 --global-batch-size 4 --swiglu --ffn-hidden-size 32
        --disable-bias-linear --normalization rmsnorm --num-key-value-heads 2 --init-method-std 0.1)
adapter=(--lora-rank 4 --lora-alpha 16 --lora-target all-linear --lora-dropout 0.1)
base=(--pretrained-checkpoint base)

# A base of some mesh, as an ordinary checkpoint and as a universal one, which is what an import of Hugging Face's makes.
run 2,1,1,1 /dev/null --train-iters 3 --lr 1e-2 --save base
convert base global_step3
mkdir imported && cp -r base/global_step3_universal imported && echo -n global_step3_universal >imported/latest_universal

# Twelve steps in one go on each mesh, and again stopped after six, with the adapter alone in the files.
whole() { run "$1" "$2.csv" --train-iters 12 "${base[@]}" "${adapter[@]}" "${@:3}"; }
whole 1,1,1,0 one
whole 1,3,1,1 test
same one.csv test.csv "tp,pp,dp,zero = 1,3,1,1"
whole 2,1,1,0 tp2
close one.csv tp2.csv 1e-5 1 "tp,pp,dp,zero = 2,1,1,0 against one process"
whole 1,1,2,2 dp2
close one.csv dp2.csv 1e-5 1 "tp,pp,dp,zero = 1,1,2,2 against one process"
whole 1,2,2,3 test --activation-checkpointing
same dp2.csv test.csv "tp,pp,dp,zero = 1,2,2,3, recomputed, against 1,1,2,2"
whole 2,1,2,1 sequence --sequence-parallel
close one.csv sequence.csv 1e-5 1 "tp,pp,dp,zero = 2,1,2,1, sequence parallel, against one process"
whole 1,1,1,0 still --lr 1e-9 --min-lr 0
paste -d, still.csv one.csv | awk -F, '$1 > 6 {gained += $3 - $11} END {exit !(gained > 0.1)}' || fail "nothing was learned: $(cat one.csv)"

# frozen_in FOLDER: the base differs from it in its moments alone, and it has adapters besides.
frozen_in() {
  "$bin/ckpt" diff base "$1" --all >log || true
  grep -q 'lora_B.weight: only in B' log || fail "no adapter in $1: $(cat log)"
  ! grep -vE 'lora_[AB].weight: only in B|exp_avg(_sq)?: only in A|step: 3 in A, none in B|^([AB]: .*|[0-9]+ parameters.*)$' log || fail "$1: the frozen model changed"
  echo "ok: $1: the frozen model is the one that the run began with, bit for bit"
}

part() {  # MESH FOLDER FLAGS...: six steps of twelve
  run "$1" /dev/null --train-iters 6 "${base[@]}" "${adapter[@]}" --save "$2" "${@:3}"
}
numbers=$(awk -v r=4 -v h=24 -v f=32 'BEGIN {print 3 * r * ((h + 24) + 2 * (h + 12) + (24 + h) + 2 * (h + f) + (f + h))}')
meshes=(1,1,1,0 2,1,1,1 1,2,2,3 2,1,2,1)
for i in 0 1 2 3; do
  mesh=${meshes[i]}
  part $mesh alone$i --exclude-frozen-parameters $([[ $i != 3 ]] || echo --sequence-parallel)
  says "parameters, $numbers of them trained"
  part $mesh full$i $([[ $i != 3 ]] || echo --sequence-parallel)
  frozen_in full$i
  convert full$i global_step6
  convert alone$i global_step6
  [[ -z $(find alone$i/global_step6_universal/zero -name fp32.pt ! -path '*lora*') ]] || fail "alone$i: $(find alone$i)"
done

# Each resumes on other meshes, as it is and by way of a universal folder.
resumes() {  # FROM MESH FLAGS...
  for folder in alone$1 full$1; do
    for way in "" --universal-checkpoint; do
      run "$2" resumed.csv --train-iters 12 $([[ $folder == full* ]] || echo "${base[@]}") "${adapter[@]}" --load $folder $way "${@:3}"
      close one.csv resumed.csv 1e-5 7 "$folder of ${meshes[$1]} -> $2 ${*:3} $way"
      rm resumed.csv resumed.jsonl
    done
  done
}
resumes 0 2,1,2,3
resumes 1 1,3,1,0
resumes 2 2,1,1,2 --sequence-parallel
resumes 3 1,1,2,2 --activation-checkpointing
base=(--pretrained-checkpoint imported)
resumes 2 1,1,1,0
base=(--pretrained-checkpoint imported/global_step3_universal)
resumes 1 2,2,1,1
base=(--pretrained-checkpoint base)

# An adapter's save grows with the adapter: by three numbers of four bytes for each of its own at ZeRO 0, where fp32 weights are their
# masters, and at ZeRO 3, which saves no others, and four at ZeRO 1 and 2. Each tp rank saves what it holds: one of A and B is cut, the other whole on all. Nothing grows with
# the model.
bytes() { du -sb --apparent-size "$1"/global_step6/*.pt | awk '{sum += $1} END {print sum}'; }
for sizes in "1,1,1,0 12 1" "1,3,2,3 12 1" "2,1,2,1 16 1.5"; do
  read -r mesh each held <<<"$sizes"
  part $mesh small --exclude-frozen-parameters --lora-rank 64
  part $mesh large --exclude-frozen-parameters --lora-rank 256
  run 1,1,1,0 /dev/null --train-iters 1 --lr-warmup-iters 0 --vocab-size 4001 --save words
  run $mesh /dev/null --train-iters 6 --pretrained-checkpoint words "${adapter[@]}" --vocab-size 4001 --lora-rank 64 --save more --exclude-frozen-parameters
  awk -v small="$(bytes small)" -v large="$(bytes large)" -v more="$(bytes more)" -v each="$each" -v n="$((numbers / 4))" -v held="$held" 'BEGIN {
    grown = large - small; expected = (256 - 64) * n * each * held
    printf "tp,pp,dp,zero = '$mesh': %d bytes more for %d of the adapter, %d for a larger vocabulary\n", grown, expected, more - small
    exit !(grown <= 1.02 * expected && grown >= expected && more - small < 1000) }' || fail "sizes"
  rm -r small large more words
done

# Precisions and offload.
run 2,2,1,1 half.csv --train-iters 12 "${base[@]}" "${adapter[@]}" --bf16
close one.csv half.csv 1e-2 1 "bf16, tp,pp,dp,zero = 2,2,1,1, against fp32"
run 2,1,2,2 fp16.csv --train-iters 12 "${base[@]}" "${adapter[@]}" --fp16 --initial-loss-scale 65536
close one.csv fp16.csv 1e-2 1 "fp16, tp,pp,dp,zero = 2,1,2,2, against fp32"
run 1,1,2,3 test.csv --train-iters 12 "${base[@]}" "${adapter[@]}" --offload-optimizer nvme --offload-param nvme --nvme-path "$scratch"
same dp2.csv test.csv "tp,pp,dp,zero = 1,1,2,3, offloaded to disk"
rm test.*

# Experts: adapters of attention and of shared experts, beside experts on several ranks; and stages of which nothing is trained.
experts=(--num-experts 4 --moe-shared-expert-intermediate-size 16 --seed 5)
run 1,1,1,0 /dev/null --train-iters 2 "${experts[@]}" --save mixture
with_experts() { run "$1" "$2" --train-iters 6 "${experts[@]}" --pretrained-checkpoint mixture "${adapter[@]}" "${@:3}"; }
with_experts 1,1,1,0 experts.csv --save adapted
with_experts 2,1,2,1 test.csv --expert-model-parallel-size 2
close experts.csv test.csv 1e-5 1 "experts, tp,pp,dp,zero = 2,1,2,1, ep 2, against one process"
rm test.*
run 1,1,1,0 /dev/null --train-iters 2 "${experts[@]}" --moe-layer-freq '[1,0,1]' --moe-shared-expert-intermediate-size 0 --save middle
in_the_middle() {
  run "$1" "$2" --train-iters 6 "${experts[@]}" --moe-layer-freq '[1,0,1]' --moe-shared-expert-intermediate-size 0 --pretrained-checkpoint middle \
    --lora-rank 2 --lora-target up_proj "${@:3}"
}
in_the_middle 1,1,1,0 middle.csv
in_the_middle 1,3,1,1 test.csv
same middle.csv test.csv "stages without trained parameters, tp,pp,dp,zero = 1,3,1,1"
in_the_middle 1,1,2,2 middle2.csv
in_the_middle 1,3,2,3 test.csv --activation-checkpointing
same middle2.csv test.csv "stages without trained parameters, tp,pp,dp,zero = 1,3,2,3, recomputed, against 1,1,2,2"
rm test.*
with_experts 2,1,2,3 test.csv --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --sequence-parallel --load adapted --exit-interval 6
says "nothing to train"

# Text.
"$bin/generate" --load full0 --prompts '1 2 3' --num-tokens-to-generate 12 --temperature 0 >expected 2>log || fail "$(cat log)"
"$bin/generate" --load full3/global_step6_universal --prompts '1 2 3' --num-tokens-to-generate 12 --temperature 0 --recompute >found 2>log || fail "$(cat log)"
cmp expected found || fail "generate: another text: $(cat expected found)"
"$bin/generate" --load alone0 --pretrained-checkpoint imported --prompts '1 2 3' --num-tokens-to-generate 12 --temperature 0 >found 2>log || fail "$(cat log)"
cmp expected found || fail "generate: another text beside its model: $(cat expected found)"
refused "alone0/global_step6: was saved without the model beside it .*--pretrained-checkpoint base" "$bin/generate" --load alone0
"$bin/generate" --load base --prompts '1 2 3' --num-tokens-to-generate 12 --temperature 0 >found 2>log || fail "$(cat log)"
! cmp -s expected found || fail "generate leaves the adapter out: $(cat found)"
echo "ok: text of a model with its adapter"

# Loads that would lose one of the two.
more() { train 1,1,2,1 /dev/null --train-iters 12 "${adapter[@]}" "$@"; }
refused "alone0/global_step6: has an adapter without the model beside it.*--pretrained-checkpoint base --load alone0" more --load alone0
refused "without the model beside it" more --load alone2 --universal-checkpoint --finetune
refused "base/global_step3: has no adapter (--lora-rank) to go on with.*--pretrained-checkpoint base, in place of --load" more --load base
refused "imported/.*: has no adapter" more --load imported --universal-checkpoint
refused "without the model beside it" more --pretrained-checkpoint alone0
refused "made with --lora-rank 4, this run has 0; give --lora-rank 4" train 1,1,1,0 /dev/null --train-iters 12 --load full1
refused "made with --lora-rank 4, this run has 8; give --lora-rank 4" more --load full0 --lora-rank 8
refused "made with --lora-alpha 16, this run has 8; give --lora-alpha 16" more "${base[@]}" --load alone1 --lora-alpha 8
refused "made with --lora-target q_proj k_proj v_proj o_proj gate_proj up_proj down_proj, this run has q_proj" more --load full0 --lora-target q_proj
refused "pretrained-checkpoint nowhere: no such folder" more --pretrained-checkpoint nowhere
refused "pretrained-checkpoint .*: no checkpoint there" more --pretrained-checkpoint .
refused "beside a model of random values, and --exclude-frozen-parameters would save no trace of it" more --save x --exclude-frozen-parameters
run 1,1,1,0 /dev/null --train-iters 6 "${adapter[@]}"
says "WARNING: --lora-rank trains an adapter beside a model of random values"
run 2,1,1,0 /dev/null --train-iters 6 --use-checkpoint-args --pretrained-checkpoint full3 --load full2
says "lora-target q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
says "lora-alpha 16"
