#!/usr/bin/env bash
# Wrong input ends in one clear error and a non-zero exit, and overwrites nothing. It never hangs or starts afresh.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start
export bin here mpi=
export -f train launch

# refused WHAT PATTERN MESH FLAGS...: the run fails within a minute and prints PATTERN exactly once. With mpi=yes it runs under
# mpirun, which must not add messages of its own; Open MPI 5's adds one.
refused() {
  local what=$1 pattern=$2 status=0
  timeout 60 bash -c "$(declare -p model trainer); train \"\$@\"" - "$3" /dev/null --train-iters 8 "${@:4}" >out.log 2>&1 || status=$?
  ((status != 0 && status != 124)) || fail "$what: exit status $status: $(cat out.log)"
  [[ ! $mpi ]] || without_prterun out.log
  [[ $(grep -cE -- "$pattern" out.log) == 1 ]] || fail "$what: expected one line with '$pattern', got: $(cat out.log)"
  ! grep -q '^iter ' out.log || fail "$what: it trained"
  ! grep -qE '^(-{20}|Primary job|mpirun|prterun|MPI_ABORT)|(ORTE|PRTE)_ERROR' out.log || fail "$what: mpirun's words follow: $(cat out.log)"
  echo "ok: $what: $(grep -E -- "$pattern" out.log | cut -c1-150)"
}
checksum() { (cd "$1" && find . -type f | sort | xargs md5sum); }

train 1,1,2,1 /dev/null --train-iters 2 --lr-decay-iters 8 --save "$scratch/ckpt" >log || fail "$(cat log)"
convert ckpt global_step2
checksum ckpt >before
c=$scratch/ckpt

refused "no --load folder" "nowhere: no such folder" 1,1,2,1 --load "$scratch/nowhere"
refused "more threads than a process has" "--local-ranks 1000000000: expected at most 1024" 1,1,1,0 --local-ranks 1000000000
refused "a batch beyond the memory" "tokens of a --micro-batch-size .1000000000. 256.00 GB, .* this machine has" 1,1,1,0 \
  --micro-batch-size 1000000000 --global-batch-size 1000000000
refused "activations beyond the memory" "and its activations at least [0-9.]* TB; that is .*--activation-checkpointing" 1,1,1,0 \
  --micro-batch-size 100000000 --global-batch-size 100000000
refused "a model beyond the memory" "not enough memory: .* take [0-9.]* TB on a rank.*--hidden-size" 1,1,2,1 --hidden-size 4000000
mkdir empty
mpi=yes refused "no latest" "no file 'latest'.*It holds: nothing" 1,1,2,1 --load "$scratch/empty"
refused "no latest_universal" "no file 'latest_universal'.*It is not a checkpoint folder" 1,1,2,1 --load "$scratch/empty" --universal-checkpoint
refused "no such tag" "--load-tag names 'global_step9', which is not a folder below .*; there are: .*global_step2" 1,1,2,1 --lr-decay-iters 8 --load "$c" --load-tag global_step9
refused "no checkpoint, none accepted" "nowhere: no file 'latest' there. It holds: nothing" 1,1,2,1 --load "$scratch/nowhere" --save "$scratch/nowhere" --exit-on-missing-checkpoint
printf 'MMIDIDX\0\0thesis' >data.idx
refused "--loss-csv of another kind" "--loss-csv .*/data.idx exists and is not a loss CSV" 1,1,2,1 --loss-csv "$scratch/data.idx" --save "$scratch/none"
refused "--trace of another kind" "--trace .*/data.idx exists and is not a trace" 1,1,1,0 --profile-step 1 --trace "$scratch/data.idx"
[[ $(tr -d '\0' <data.idx) == MMIDIDXthesis && ! -e none ]] || fail "a refused run wrote"
echo ".." >"$scratch/empty/latest"
refused "latest out of the folder" "latest names '..', which is not a folder below" 1,1,2,1 --load "$scratch/empty"
rm "$scratch/empty/latest"
refused "--save is a file" "--save .*/log/runs: .*/log: is a file, expected a folder" 1,1,2,1 --save "$scratch/log/runs"
mpi=yes refused "--save cannot be written" "--save /proc/runs: .*cannot write to /proc: No such file" 1,1,2,1 --save /proc/runs
mpi=yes refused "another schedule" "the learning-rate schedule differs" 1,1,2,1 --load "$c" --lr=1e-4 --lr-decay-iters 8
mpi=yes refused "wrong hidden size" "--hidden-size 24, this run has 48" 1,1,2,1 --load "$c" --hidden-size=48
mpi=yes refused "ranks not divisible" "world size 2 is not divisible" 1,1,2,0 --tensor-model-parallel-size=3
refused "batch not divisible" "--global-batch-size \(12\) must be divisible" 1,1,5,0
mpi=yes refused "unknown flag" "--hiden-dropout" 1,1,1,0 --hiden-dropout 0.1
mpi=yes refused "no GPU" "--device cuda: (this build has no CUDA|no GPU found on this machine).*use --device cpu" 1,1,2,0 --device cuda
mpi=yes refused "NCCL without a GPU" "--distributed-backend nccl: (this build|no GPU).*use --device cpu, with --distributed-backend mpi" \
    1,1,2,0 --distributed-backend nccl

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
rm broken/global_step2_universal/manifest.json  # DeepSpeed's folders have none
refused "missing universal parameter" "missing in the checkpoint: 3.mlp.dense_h_to_4h.bias" 2,1,1,0 --lr-decay-iters 8 --load "$scratch/broken" --universal-checkpoint
cp -r ckpt/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias broken/global_step2_universal/zero/
cp -r broken/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias broken/global_step2_universal/zero/9.mlp.extra.bias
refused "unexpected universal parameter" "unexpected, not in this model: 9.mlp.extra.bias" 2,1,1,0 --lr-decay-iters 8 --load "$scratch/broken" --universal-checkpoint
rm -r broken/global_step2_universal/zero/3.mlp.dense_h_to_4h.bias
train 2,1,1,0 /dev/null --train-iters 8 --load broken --universal-checkpoint --no-load-strict >log || fail "$(cat log)"
grep -q "unexpected, not in this model: 9.mlp.extra.bias$" log || fail "an unused parameter: $(cat log)"
grep -q "missing in the checkpoint: 3.mlp.dense_h_to_4h.bias$" log || fail "a missing parameter: $(cat log)"
[[ $(checksum ckpt) == "$(cat before)" ]] || fail "the checkpoint was changed"

# differs WHAT PATTERN SECOND...: starts the second of two ranks with SECOND, which differs from the first. The job must end in
# one line that has PATTERN. Each rank chooses its command itself, since Debian 13's mpirun crashes at `:` (open-mpi/ompi 13303).
first=("$bin/pretrain_gpt" "${model[@]}" --train-iters 8 --distributed-timeout-minutes 0.05 --save "$scratch/one")
differs() {
  local what=$1 pattern=$2 status=0
  shift 2
  printf '%s\n' '#!/bin/bash' "((OMPI_COMM_WORLD_RANK)) || exec ${first[*]@Q}" "exec ${*@Q}" >rank.sh
  timeout 60 "$here/../../tools/mpirun.sh" 2 bash rank.sh >out.log 2>&1 || status=$?
  ((status != 0 && status != 124)) || fail "$what: exit status $status: $(cat out.log)"
  without_prterun out.log
  [[ $(wc -l <out.log) == 1 ]] && grep -qE -- "$pattern" out.log || fail "$what: expected one line with '$pattern', got: $(cat out.log)"
  echo "ok: $what: $(cut -c1-150 out.log)"
}
for flag in "lr 0.002" "seed 7" "hidden-dropout 0.2" "save $scratch/two" "zero-stage 1" "train-iters 9"; do
  read -r name value <<<"$flag"
  differs "another --$name" "^pretrain_gpt: .rank 1. --$name is $value, but on rank 0 --$name is " "${first[@]}" "--$name" "$value"
done
differs "--help on one rank" "rank 1. --help or --version is given, but on rank 0 --help or --version is absent" "${first[@]}" --help
differs "another program" "rank 1. the program is pretrain_mlp, but on rank 0 the program is pretrain_gpt" "$bin/pretrain_mlp" --lr 1
differs "a program that ends" "not all ranks have come to MPI_Init within 3 s .*: rank 1 has ended; all ranks must run pretrain_gpt" true
differs "a program without MPI" "not all ranks have come to MPI_Init within 3 s .*: rank 1 runs .*sleep; all ranks must run pretrain_gpt" sleep 100
differs "a program that does not meet" "^pretrain_gpt: rank 1 of 2 did not come to the start within 3 s" "$bin/ranks_tests" --gtest_filter=none
[[ ! -e one && ! -e two ]] || fail "ranks that differ saved"

# A loss that is not finite stops the run, is located, and spoils no checkpoint.
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

# A failed write is reported with its reason.
train 1,1,1,0 /dev/full --train-iters 2 --lr-decay-iters 8 >log 2>&1 || fail "a CSV that cannot be written: $(tail -5 log)"
grep -q 'WARNING: iteration 0: cannot write to /dev/full: No space left on device' log || fail "a CSV that cannot be written: $(cat log)"
status=0
"$bin/pretrain_gpt" "${model[@]}" --train-iters 2 --lr-decay-iters 8 >/dev/full 2>log || status=$?
[[ $status == 1 && $(<log) == "pretrain_gpt: cannot write to standard output: "* ]] || fail "a full device: $status: $(cat log)"
status=0
"$bin/pretrain_gpt" >log 2>&1 || status=$?
[[ $status == 1 ]] && grep -q -e '--mock-data' log || fail "no flags, $status: $(cat log)"
status=0
"$here/../../tools/mpirun.sh" 2>log || status=$?
[[ $status == 2 ]] && grep -q '^usage: tools/mpirun.sh RANKS PROGRAM' log || fail "mpirun.sh alone, $status: $(cat log)"
status=0
"$bin/ckpt" compare ckpt >log 2>&1 || status=$?
[[ $status == 2 ]] || fail "an unknown command of ckpt, $status: $(cat log)"
echo "ok: what cannot be written, and no flags"
