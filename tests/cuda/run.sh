#!/usr/bin/env bash
# The tests that need a GPU, on a machine with one or more. Builds the preset `cuda`, then compares
#   - kernels, communicators and reads of a GPU's memory with their CPU counterparts (gpu_mpi_test)
#   - losses on meshes of up to eight ranks that share the GPUs by the mpi backend, and of one rank by nccl, with those of one
#     rank on the CPU: fp32 to 1e-4, bf16 to 2e-2
#   - a run that moves from the CPU to the GPU and back, over universal folders and directly, with one that stays on the CPU
# Not part of the tests for every machine. Written without access to a GPU: it has never run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/setup.sh --cuda
cmake --preset cuda
cmake --build --preset cuda --target pretrain_gpt gpu_mpi_test ds_to_universal
tools/mpirun.sh 2 build/cuda/bin/gpu_mpi_test

set -- build/cuda/bin
source tests/runs/common.sh
# on_gpu CSV BACKEND MESH FLAGS...
on_gpu() {
  rm -f "$1"
  train "$3" "$1" --device cuda --distributed-backend "$2" "${@:4}" >log 2>&1 || fail "$*: $(tail -5 log)"
  grep -q '^device: cuda' log || fail "$*: not on a GPU: $(cat log)"
}

for case in "fp32 1e-4" "bf16 2e-2"; do
  read -r precision tolerance <<<"$case"
  flags=(--train-iters 10)
  [[ $precision == fp32 ]] || flags+=("--$precision")
  rm -f cpu.csv
  train 1,1,1,0 cpu.csv --device cpu "${flags[@]}" >log 2>&1 || fail "$precision on the CPU: $(tail -5 log)"
  for run in "nccl 1,1,1,0" "nccl 1,1,1,3" "mpi 1,1,1,0" "mpi 2,1,1,0 --sequence-parallel" "mpi 1,2,1,0 --activation-checkpointing" \
             "mpi 2,2,2,1" "mpi 1,1,3,2" "mpi 1,2,2,3"; do
    on_gpu gpu.csv $run "${flags[@]}"
    close cpu.csv gpu.csv "$tolerance" 1 "CPU against GPU, $precision, backend and tp,pp,dp,zero: $run"
  done
done

# CPU, GPU, CPU: ten steps each.
schedule=(--lr-decay-iters 30)
train 2,2,2,1 whole.csv --device cpu --train-iters 30 >log 2>&1 || fail "$(tail -5 log)"
train 2,2,2,1 part.csv --device cpu --train-iters 10 "${schedule[@]}" --save ckpt >log 2>&1 || fail "$(tail -5 log)"
convert ckpt global_step10
on_gpu part.csv mpi 1,2,2,3 --train-iters 20 "${schedule[@]}" --load ckpt --universal-checkpoint --save ckpt2
close <(head -21 whole.csv) part.csv 1e-4 11 "the GPU goes on from the CPU's universal folder"
cp -r ckpt2 ckpt3
convert ckpt2 global_step20
for way in "ckpt2 --universal-checkpoint" "ckpt3"; do
  rm part.csv
  train 4,1,1,1 part.csv --device cpu --train-iters 30 --load $way >log 2>&1 || fail "$way: $(tail -5 log)"
  close whole.csv part.csv 1e-4 21 "the CPU goes on from the GPU's $way"
done
