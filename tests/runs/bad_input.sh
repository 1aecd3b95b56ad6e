#!/usr/bin/env bash
# Wrong input ends in one clear error, a non-zero exit and nothing overwritten; never in a hang or a fresh start.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# refused WHAT PATTERN MESH FLAGS...: the run fails within a minute and says PATTERN exactly once.
refused() {
  local what=$1 pattern=$2 status=0
  timeout 60 bash -c 'source "$0" "$1"; train "${@:2}"' "$here/common.sh" "$bin" "$3" /dev/null --train-iters 8 "${@:4}" >out.log 2>&1 || status=$?
  ((status != 0 && status != 124)) || fail "$what: exit status $status: $(cat out.log)"
  [[ $(grep -cE -- "$pattern" out.log) == 1 ]] || fail "$what: expected one line with '$pattern', got: $(cat out.log)"
  ! grep -q '^iteration' out.log || fail "$what: it trained"
  echo "ok: $what: $(grep -E -- "$pattern" out.log | cut -c1-150)"
}
checksum() { (cd "$1" && find . -type f | sort | xargs md5sum); }

train 1,1,2,1 /dev/null --train-iters 2 --lr-decay-iters 8 --save "$scratch/ckpt" >log || fail "$(cat log)"
convert ckpt global_step2
checksum ckpt >before
c=$scratch/ckpt

refused "no --load folder" "nowhere: no such folder" 1,1,2,1 --load "$scratch/nowhere"
mkdir empty
refused "no latest" "no file 'latest'.*It holds: nothing" 1,1,2,1 --load "$scratch/empty"
refused "no latest_universal" "no file 'latest_universal'.*It is not a checkpoint folder" 1,1,2,1 --load "$scratch/empty" --universal-checkpoint
refused "no such tag" "has no tag 'global_step9'. It holds: .*global_step2" 1,1,2,1 --lr-decay-iters 8 --load "$c" --load-tag global_step9
refused "no checkpoint, none accepted" "nowhere: no such folder" 1,1,2,1 --load "$scratch/nowhere" --save "$scratch/nowhere" --exit-on-missing-checkpoint
refused "--save is a file" "--save .*/log/runs: .*/log: is a file, expected a folder" 1,1,2,1 --save "$scratch/log/runs"
refused "--save cannot be written" "--save /proc/runs: .*cannot write to /proc: No such file" 1,1,2,1 --save /proc/runs
refused "another schedule" "the learning-rate schedule differs" 1,1,2,1 --load "$c" --lr=1e-4 --lr-decay-iters 8
refused "wrong hidden size" "--hidden-size 24, this run has 48" 1,1,2,1 --load "$c" --hidden-size=48
refused "heads not divisible by tp" "--num-attention-heads \(4\) must be divisible by --tensor-model-parallel-size \(3\); sizes that work: 1, 2, 4" 3,1,1,0
refused "sequence not divisible by tp" "--sequence-parallel: --seq-length \(14\) must be divisible by --tensor-model-parallel-size \(4\); sizes that work: 1, 2" \
    4,1,1,0 --sequence-parallel --seq-length=14
refused "ranks not divisible" "world size 2 is not divisible" 1,1,2,0 --tensor-model-parallel-size=3
refused "batch not divisible" "--global-batch-size \(12\) must be divisible" 1,1,5,0
refused "unknown flag" "--hiden-dropout" 1,1,1,0 --hiden-dropout 0.1
refused "no GPU" "--device cuda: (this build has no CUDA|no GPU found on this machine).*use --device cpu" 1,1,2,0 --device cuda
refused "NCCL without a GPU" "--distributed-backend nccl: (this build|no GPU).*use --device cpu, with --distributed-backend mpi" \
    1,1,2,0 --distributed-backend nccl
refused "NCCL on the CPU" "--distributed-backend nccl moves tensors between GPUs, got --device cpu" \
    1,1,2,0 --device cpu --distributed-backend nccl
refused "offload without partitions" "--offload-optimizer nvme needs a partitioned optimizer: --zero-stage \(0\) must be at least 1; use --zero-stage 1" \
    1,1,2,0 --offload-optimizer nvme --nvme-path "$scratch"
refused "offload to no folder" "--nvme-path $scratch/nowhere: cannot create a swap file there: No such file" \
    1,1,2,1 --offload-optimizer nvme --nvme-path "$scratch/nowhere"

for file in mp_rank_00_model_states.pt zero_pp_rank_1_mp_rank_00_optim_states.pt; do
  cp -r ckpt broken
  truncate -s -1000 broken/global_step2/$file
  refused "truncated $file" "$file" 1,1,2,1 --lr-decay-iters 8 --load "$scratch/broken"
  rm broken/global_step2/$file
  refused "missing $file" "$file: is missing .written on .*no other checkpoint to fall back to" 1,1,2,1 --lr-decay-iters 8 --load "$scratch/broken"
  if "$bin/ds_to_universal" --input_folder broken/global_step2 --output_folder broken/u 2>log; then fail "converted without $file"; fi
  [[ ! -e broken/u && ! -e broken/latest_universal.new ]] || fail "a failed conversion left its output"
  rm -r broken
done
cp -r ckpt broken
rm -r broken/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias
refused "missing universal files" "zero/3.mlp.dense_h_to_4h.bias/fp32.pt: is missing .written on" 2,1,1,0 --lr-decay-iters 8 --load "$scratch/broken" --universal-checkpoint
rm broken/global_step2_universal/manifest.json  # which DeepSpeed's have not
refused "missing universal parameter" "missing in the checkpoint: 3.mlp.dense_h_to_4h.bias" 2,1,1,0 --lr-decay-iters 8 --load "$scratch/broken" --universal-checkpoint
cp -r ckpt/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias broken/global_step2_universal/zero/
cp -r broken/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias broken/global_step2_universal/zero/9.mlp.extra.bias
refused "unexpected universal parameter" "unexpected, not in this model: 9.mlp.extra.bias" 2,1,1,0 --lr-decay-iters 8 --load "$scratch/broken" --universal-checkpoint
rm -r broken/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias
train 2,1,1,0 /dev/null --train-iters 8 --load broken --universal-checkpoint --no-load-strict >log || fail "$(cat log)"
grep -q "unexpected, not in this model: 9.mlp.extra.bias$" log || fail "an unused parameter: $(cat log)"
grep -q "missing in the checkpoint: 3.mlp.dense_h_to_4h.bias$" log || fail "a missing parameter: $(cat log)"
[[ $(checksum ckpt) == "$(cat before)" ]] || fail "the checkpoint was changed"

# A loss that is not finite stops the run, says where, and spoils no checkpoint.
status=0
train 1,2,2,1 nan.csv --train-iters 30 --lr 1e30 --min-lr 0 --clip-grad 0 --lr-warmup-iters=0 --save "$scratch/nan" --save-interval 1 >log 2>&1 || status=$?
((status != 0)) || fail "a run with a loss of nan succeeded"
grep -Eq 'pretrain_gpt: .rank [0-9]. (loss|gradient norm) is -?(nan|inf) at iteration [0-9]+, seen first here' log || fail "$(cat log)"
echo "ok: $(grep -Eo '.rank [0-9]. (loss|gradient norm) is -?(nan|inf).*' log | head -1 | cut -c1-100)"
train 1,2,2,1 nan.csv --train-iters 6 --lr 1e30 --min-lr 0 --clip-grad 0 --lr-warmup-iters=0 --no-check-for-nan-in-loss-and-grad >log 2>&1 || fail "$(cat log)"

# Saving a tag that exists replaces it as a whole.
train 1,1,1,0 /dev/null --train-iters 2 --lr-decay-iters 8 --save "$c" >log || fail "$(cat log)"
[[ ! -e ckpt/global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt && $(cat ckpt/latest) == global_step2 ]] || fail "the tag is a mixture"
[[ -z $(find ckpt -name '*.tmp') ]] || fail "temporary files were left"
echo "ok: a tag is replaced as a whole"
