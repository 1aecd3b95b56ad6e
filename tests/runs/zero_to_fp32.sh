#!/usr/bin/env bash
# zero_to_fp32 merges tp and pp of every ZeRO stage and of universal folders. Its output equals the masters bit for bit, which a
# gatherer in plain Python reads. Every argument of DeepSpeed's script works, in every spelling.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# exported CHECKPOINT WHAT ARGUMENTS...
exported() {
  local checkpoint=$1 what=$2 output=weights
  shift 2
  [[ $* != *--safe_serialization* ]] || output=safe
  "$bin/zero_to_fp32" "$@" >export.log 2>&1 || fail "$what: $(tail -3 export.log)"
  python3 "$here/gather.py" "$checkpoint" $output >compare.log || fail "$what: $(tail -3 compare.log)"
  echo "ok: $what: $(tail -1 compare.log)"
}

for zero in 0 1 2 3; do
  train 2,2,2,$zero /dev/null --bf16 --lr-decay-iters 100 --train-iters 2 --save z$zero >train.log || fail "$(tail -5 train.log)"
  exported z$zero/global_step2 "ZeRO $zero" z$zero weights --max_shard_size 20KB
  grep -q "^z$zero: ordinary checkpoint of ZeRO $zero, tp 2, pp 2, dp 2$" export.log || fail "$(cat export.log)"
done

exported z1/global_step2 "-t TAG" --max_shard_size=0.02MB -t global_step2 z1 safe --safe_serialization
exported z1/global_step2 "--tag=TAG" --tag=global_step2 z1 weights
exported z1/global_step2 "tag folder" z1/global_step2 safe --exclude_frozen_parameters --safe_serialization
exported z1/global_step2 "-d" -d z1 weights
grep -q '^pytorch_model.bin: ' export.log || fail "--debug lists no file: $(cat export.log)"
grep -q '^  2.input_layernorm.weight  float32 \[24\]$' export.log || fail "--debug lists no tensor: $(cat export.log)"
convert z3 global_step2
exported z3/global_step2 "universal folder" z3/global_step2_universal safe --safe_serialization

refused() {
  local code=$1 expected=$2
  shift 2
  local found=0
  "$bin/zero_to_fp32" "$@" >export.log 2>&1 || found=$?
  [[ $found == "$code" ]] && grep -q -- "$expected" export.log || fail "zero_to_fp32 $*: $found, $(cat export.log)"
  echo "ok: refused: $(tail -1 export.log)"
}
refused 2 'output_dir is missing' z1
refused 2 "'5XB' is not a size" z1 weights --max_shard_size 5XB
refused 2 'unexpected argument' z1 weights more
refused 1 "which is not a folder below z1; there are: global_step2" z1 weights -t global_step7
refused 1 'is a file' z1 train.log
