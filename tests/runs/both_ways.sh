#!/usr/bin/env bash
# Runs sixteen cases on threads and then on processes of mpirun. Losses, norms, rates and the checkpoint's files must be the
# same, byte for byte. The cases cover all groups of a mesh, ZeRO stages, precisions and ways of computing and saving.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start
model+=(--global-batch-size 6)
mkdir threads processes

runs=0
# both MESH FLAGS...
both() {
  local way mesh=$1
  for way in threads processes; do
    (cd $way && rm -rf c && mpi=$([[ $way == threads ]] || echo yes) train "$mesh" run.csv --train-iters 3 --lr-decay-iters 9 --save c \
      "${@:2}" >log 2>&1) || fail "$way, $*: $(tail -5 $way/log)"
  done
  same threads/run.csv processes/run.csv "tp,pp,dp,zero = $*" >same.log || fail "$(cat same.log)"
  diff -rq threads/c processes/c >files.log || fail "$*: $(head -5 files.log)"
  "$bin/ckpt" verify threads/c >verify.log 2>&1 || fail "$*: $(cat verify.log)"
  ((runs += 1))
}

both 1,1,3,0
both 2,1,2,1 --bf16 --sequence-parallel
both 2,2,2,2 --same-bits --hidden-size 64
both 2,1,2,3 --bf16 --sequence-parallel
both 4,1,1,0 --activation-checkpointing
both 1,4,1,1 --bf16
both 1,5,1,0 --fp16 --initial-loss-scale 4096
both 2,2,1,1 --untie-embeddings-and-output-weights
both 2,2,2,1 --async-save --save-interval 2
both 2,2,2,3 --fp16 --activation-checkpointing --sequence-parallel
both 1,2,3,2 --micro-batch-size 2 --global-batch-size 12
both 3,1,2,3 --vocab-size 50 --num-attention-heads 6 --offload-optimizer nvme --offload-param nvme --nvme-path .
both 1,3,2,2 --async-save --bf16
both 2,1,2,1 --swiglu --num-key-value-heads 2 --normalization rmsnorm --disable-bias-linear --use-rotary-position-embeddings
both 2,2,1,2 --position-embedding-type alibi --embed-layernorm
both 1,1,6,0 --save-16bit-model --freeze position
echo "ok: $runs runs on threads are those of mpirun, losses and files"
