#!/usr/bin/env bash
# Checks that real torch, DeepSpeed and transformers read our checkpoints, and that we read DeepSpeed's, every number bit by bit
# (see compare.py). Trains tiny models on meshes of up to 8 ranks. Installs the same packages as run.sh, once.
#
#   tests/interop/checkpoints.sh [FOLDER_OF_EXECUTABLES]  default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# FOLDER MESH FLAGS...: MESH is tp,pp,dp,zero.
cases=(
  "z0-fp32 1,1,1,0"
  "z0-fp16-mesh 2,2,1,0 --fp16 --initial-loss-scale 1024"
  "z1-fp32-alone 1,1,1,1"
  "z1-fp16-mesh 2,2,2,1 --fp16 --initial-loss-scale 1024 --save-16bit-model"
  "z1-bf16-llama 4,1,2,1 --bf16 --swiglu --normalization rmsnorm --use-rotary-position-embeddings --disable-bias-linear
   --untie-embeddings-and-output-weights --num-key-value-heads 4"
  "z2-fp16 1,1,3,2 --fp16 --initial-loss-scale 1024"
  "z2-bf16-mesh 2,2,2,2 --bf16"
  "z2-fp32-pipeline 1,4,2,2 --save-16bit-model"
  "z3-fp32-alone 1,1,1,3"
  "z3-bf16 1,1,3,3 --bf16 --save-16bit-model"
  "z3-fp32-tp 2,1,2,3"
  "z3-bf16-pipeline 1,2,2,3 --bf16 --save-16bit-model"
  "z1-bf16-chunks 2,2,1,1 --bf16 --num-layers 4 --num-layers-per-virtual-pipeline-stage 1 --global-batch-size 4"
  "z1-fp32-frozen 1,1,2,1 --freeze embeddings ^[23]\. --save-16bit-model"
  "z2-bf16-frozen 1,1,2,2 --bf16 --freeze embeddings ^[23]\."
  "z2-fp32-frozen-mesh 2,2,2,2 --freeze embeddings ^[23]\. --save-16bit-model"
  "z3-fp32-frozen 1,1,3,3 --freeze embeddings ^[23]\."
  "z3-bf16-frozen-tp 2,1,2,3 --bf16 --freeze embeddings ^[23]\. --save-16bit-model"
)
started=$SECONDS
for case in "${cases[@]}"; do
  read -r name mesh flags <<<"${case//$'\n'/ }"
  train "$mesh" /dev/null --lr-decay-iters 100 --train-iters 3 $flags --save "ours/$name" >train.log 2>&1 || fail "$name: $(tail -5 train.log)"
done
echo "trained ${#cases[@]} models in $((SECONDS - started)) s"

mkdir theirs
for archive in "$repository"/tests/fixtures/{deepspeed,megatron}/*.tar.xz; do tar xf "$archive" -C theirs; done

compare 900 compare.py "$bin" ours theirs
