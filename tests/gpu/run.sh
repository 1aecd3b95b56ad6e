#!/usr/bin/env bash
# The tests and measurements that need a GPU, in parts of at most eight minutes, in the order of what they decide:
#
#   tests/gpu/run.sh [PART...]      default: all that have not passed
#
#   kernels    kernels, communicators and reads of a GPU's memory against the CPU; NCCL of one rank, and of two on one GPU
#   parity     losses on the CPU against the GPU: models, precisions, meshes
#   step       the time of a 1.3B step by kernel, as a table and a trace
#   peers      tokens/s, share of the peak and memory against PyTorch, eager and compiled
#   saves      saves beside the training, and a run that goes CPU, GPU, CPU
#   memcheck   compute-sanitizer over the kernels
#
# Runs in a kit (pack.sh) or over the preset `cuda`'s build. Output goes to OUT (runs/gpu): a log a part, and PART.passed, which
# leaves the part out the next time.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -e $root/env.sh ]]; then source "$root/env.sh"; export BIN=$root/bin; fi
export BIN=${BIN:-$root/build/cuda/bin}
out=$(realpath -m "${OUT:-runs/gpu}")
export OUT=$out
parts=(kernels parity step peers saves memcheck)

if [[ ${1:-} != --part ]]; then
  mkdir -p "$out"
  (($# > 0)) || set -- "${parts[@]}"
  failed=0
  for part; do
    [[ " ${parts[*]} " == *" $part "* ]] || { echo "run.sh: $part is none of ${parts[*]}" >&2; exit 2; }
    if [[ -e $out/$part.passed ]]; then echo "$part: passed before"; continue; fi
    started=$SECONDS status=0
    timeout --kill-after 10 480 "${BASH_SOURCE[0]}" --part "$part" >"$out/$part.log" 2>&1 || status=$?
    if ((status == 0)); then
      touch "$out/$part.passed"
      echo "$part: passed in $((SECONDS - started)) s"
    else
      echo "$part: FAILED ($status) after $((SECONDS - started)) s; the end of $out/$part.log:"
      tail -25 "$out/$part.log"
      failed=1
    fi
  done
  exit $failed
fi

part=$2
set -- "$BIN"
source "$root/tests/runs/common.sh"
mpi=yes

# nccl_pair PROGRAM ARGS...: two ranks of NCCL on one GPU. NCCL allows that of two machines, so each rank names another.
nccl_pair() {
  timeout 120 "$root/tools/mpirun.sh" 2 bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo exec "$@"' - "$@"
}
# on_gpu CSV BACKEND MESH FLAGS...
on_gpu() {
  rm -f "$1"
  train "$3" "$1" --device cuda --distributed-backend "$2" "${@:4}" >log 2>&1 || fail "$*: $(tail -5 log)"
  grep -q '^device: cuda' log || fail "$*: not on a GPU: $(cat log)"
}
on_cpu() { rm -f "$2"; train "$1" "$2" --device cpu "${@:3}" >log 2>&1 || fail "$*: $(tail -5 log)"; }
# beside COMMAND...: runs it in a folder of its own, beside others, on a quarter of the cores. `all_passed` waits for them.
job=0
beside() {
  while (($(jobs -rp | wc -l) >= ($(nproc --all) + 3) / 4)); do wait -n || true; done
  mkdir -p "job$((++job))"
  (cd "job$job" && "$@") || touch failed &
}
all_passed() { wait; [[ ! -e failed ]]; }

kernels() {
  "$bin/pretrain_gpt" --version
  nvidia-smi || true
  beside one_rank_of_nccl
  for case in "1 1 0" "1 1 3" "2 1 0" "1 2 0" "1 2 0 --global-batch-size 1"; do beside two_ranks_of_nccl $case; done
  "$root/tools/mpirun.sh" 2 "$bin/gpu_mpi_test" || touch failed
  wait
  "$bin/gpu_kernels" || touch failed
  all_passed
}
one_rank_of_nccl() {
  on_cpu 1,1,1,0 cpu.csv --train-iters 6
  on_gpu gpu.csv nccl 1,1,1,0 --train-iters 6
  close cpu.csv gpu.csv 1e-4 1 "one rank of NCCL"
}
two_ranks_of_nccl() { # TP PP ZERO FLAGS...
  on_cpu 1,1,1,0 cpu.csv --train-iters 6 "${@:4}"
  nccl_pair "$bin/pretrain_gpt" "${model[@]}" --tensor-model-parallel-size "$1" --pipeline-model-parallel-size "$2" --zero-stage "$3" \
    --device cuda --loss-csv gpu.csv --train-iters 6 --distributed-timeout-minutes 1 "${@:4}" >log 2>&1 ||
    fail "two ranks of NCCL, $*: $(tail -5 log)"
  close cpu.csv gpu.csv 1e-4 1 "two ranks of NCCL on one GPU, tp pp zero = $*"
}

parity() {
  local case precision
  local llama="--swiglu --normalization rmsnorm --use-rotary-position-embeddings --num-key-value-heads 2 --disable-bias-linear"
  for case in "" "$llama" "$llama --window-size 31,0" "--position-embedding-type alibi --embed-layernorm" "--attention-dropout 0" \
              "--activation-checkpointing" "--zero-stage 3" "--apply-layernorm-1p" "--deterministic-mode"; do
    for precision in fp32 bf16 fp16; do beside of_model $precision "$case"; done
  done
  for precision in fp32 bf16; do beside of_meshes $precision; done
  beside resumed
  all_passed
}
flags_of() { # PRECISION
  tolerance=1e-4
  [[ $1 == fp32 ]] || { flags+=("--$1"); tolerance=2e-2; }
}
of_model() { # PRECISION FLAGS
  flags=(--hidden-size 256 --seq-length 64 --max-position-embeddings 64 --global-batch-size 4 --train-iters 5 --lr-warmup-iters 1 $2)
  flags_of "$1"
  on_cpu 1,1,1,0 cpu.csv "${flags[@]}"
  on_gpu gpu.csv nccl 1,1,1,0 "${flags[@]}"
  close cpu.csv gpu.csv "$tolerance" 1 "CPU against GPU, $1 ${2:-GPT-2}"
}
of_meshes() { # PRECISION
  flags=(--train-iters 8)
  flags_of "$1"
  on_cpu 1,1,1,0 cpu.csv "${flags[@]}"
  for case in "2,1,1,0 --sequence-parallel" "1,2,1,0 --activation-checkpointing" "2,2,2,1" "1,1,3,2" "1,2,2,3" "1,2,1,0 --global-batch-size 12"; do
    on_gpu gpu.csv mpi $case "${flags[@]}"
    close cpu.csv gpu.csv "$tolerance" 1 "CPU against GPU, $1, ranks that share it, tp,pp,dp,zero = $case"
  done
}
resumed() { # with fixed orders, a stopped run goes on bit for bit
  on_gpu whole.csv nccl 1,1,1,0 --train-iters 10 --deterministic-mode
  on_gpu parts.csv nccl 1,1,1,0 --train-iters 10 --deterministic-mode --save ckpt --exit-interval 5
  train 1,1,1,0 parts.csv --device cuda --train-iters 10 --deterministic-mode --load ckpt >log 2>&1 || fail "$(tail -5 log)"
  same whole.csv parts.csv "a run on a GPU, stopped and resumed"
}

# The 1.3B model in bf16: PROGRAM FLAGS...
big=(--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --mock-data
     --vocab-size 50304 --micro-batch-size 4 --lr 1e-4 --lr-decay-style constant --attention-dropout 0 --hidden-dropout 0
     --eval-iters 0 --bf16 --device cuda --log-interval 1)
step() {
  export OMP_NUM_THREADS=$(nproc --all)
  for count in 1 8; do
    "$bin/pretrain_gpt" "${big[@]}" --global-batch-size $((4 * count)) --train-iters 12 --profile-step 10 --trace "$OUT/step-$count.json"
  done
  for file in "$OUT"/step-*.json; do gzip -f "$file"; done
}

peers() { OMP_NUM_THREADS=$(nproc --all) PYTHON=${PYTHON:-python3} ROUNDS=${ROUNDS:-1} "$root/benchmarks/gpu/run.sh" ${SIZES:-124M 1.3B}; }

saves() {
  for flags in "" --async-save; do
    OMP_NUM_THREADS=$(nproc --all) "$bin/pretrain_gpt" "${big[@]}" --global-batch-size 4 --train-iters 8 --save big --save-interval 4 --save-total-limit 1 --report-save $flags
    rm -rf big
  done
  local schedule=(--lr-decay-iters 30)
  on_cpu 2,2,2,1 whole.csv --train-iters 30
  on_cpu 2,2,2,1 part.csv --train-iters 10 "${schedule[@]}" --save ckpt
  convert ckpt global_step10
  on_gpu part.csv mpi 1,2,2,3 --train-iters 20 "${schedule[@]}" --load ckpt --universal-checkpoint --save ckpt2
  close <(head -21 whole.csv) part.csv 1e-4 11 "the GPU goes on from the CPU's universal folder"
  cp -r ckpt2 ckpt3
  convert ckpt2 global_step20
  for way in "ckpt2 --universal-checkpoint" "ckpt3"; do
    on_cpu 4,1,1,1 part.csv --train-iters 30 --load $way
    close whole.csv part.csv 1e-4 21 "the CPU goes on from the GPU's $way"
  done
}

memcheck() { "$root/tools/mpirun.sh" 1 compute-sanitizer --error-exitcode 9 --launch-timeout 60 "$bin/gpu_mpi_test" --gtest_filter='*Adam*:*Swiglu*:*Norms*:*Entropy*:*Squares*:*Dropout*:*Heads*:*Linear*:*Sinks*'; }

"$part"
