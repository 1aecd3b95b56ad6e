#!/usr/bin/env bash
# Simulates a step of Llama-3 8B on four clusters (simulate.py), from traces that lone ranks write on this machine: three layers of
# true size and 192 tokens.
#
#   benchmarks/cluster/run.sh [FOLDER_OF_EXECUTABLES [FLAGS OF simulate.py]...]     TRACES=FOLDER keeps and reuses the traces
#
# The largest trace takes 10.7 GB; with VOCABULARY=2048, which leaves the tables out of dp's traffic, 4.1.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
traces=$(realpath -m "${TRACES:-$scratch}")
mkdir -p "$traces"
vocabulary=${VOCABULARY:-128256}

model=(--num-layers 3 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-key-value-heads 8 --vocab-size "$vocabulary" --swiglu
       --normalization rmsnorm --use-rotary-position-embeddings --disable-bias-linear --untie-embeddings-and-output-weights --mock-data --bf16
       --seq-length 192 --max-position-embeddings 192 --micro-batch-size 1 --attention-dropout 0 --hidden-dropout 0 --lr 1e-4 --eval-iters 0)
meshes=()
for mesh in "2 4 2" "8 8 2" "2 32 3" "1 64 3"; do # TP DP ZERO
  read -r tp dp zero <<<"$mesh"
  trace=$traces/tp$tp-dp$dp-zero$zero-$vocabulary.json
  [[ -e $trace ]] || "$bin/pretrain_gpt" "${model[@]}" --tensor-model-parallel-size "$tp" --zero-stage "$zero" --global-batch-size "$dp" \
    --pretend-ranks $((tp * dp)) --pretend-rank $((tp * dp / 2)) --train-iters 2 --profile-step 2 --trace "$trace" >log || { tail -3 log >&2; exit 1; }
  meshes+=("$trace:tp=$tp,dp=$dp,name=8B tp$tp dp$dp ZeRO $zero")
done
((vocabulary == 128256)) || set -- "$bin" --vocab "$vocabulary:128256" "${@:2}"
python3 "$repository/benchmarks/cluster/simulate.py" "${meshes[@]}" --layers 32 --seq 192:8192 "${@:2}"
