#!/usr/bin/env bash
# Measurements for a GPU that is there for 15 minutes, in one call that takes about ten and ends before 14.
#
#   tests/gpu/quarter_hour.sh [PHASE...]          in a kit (pack.sh) or over the preset `cuda`'s build; default: all, in this order
#   tests/gpu/quarter_hour.sh --dry-run           prints each phase with its limit in seconds, and each pair of ranks
#   tests/gpu/quarter_hour.sh --cpu-losses FOLDER    on a CPU, before: the losses that `pairs` compares with and the documents that
#                                                 `attention` reads; pack.sh does it. CPU_LOSSES names the folder, if it is not in the kit
#
#   versions   the GPU, driver, trainer and PyTorch
#   kernels    gpu_mpi_test of two ranks
#   attention  a layer with a causal mask, a window, documents or ALiBi, with and without grouped queries, at 2048 and 8192 tokens
#   pairs      two NCCL ranks that share the GPU, in bf16, against one process on the CPU: tp, pp, ZeRO 0 to 3, experts
#   stopped    a pair with one rank stopped: how long until the other says so and ends
#   peers      the 1.3B model beside torch.compile
#   large      the 1.3B model with 8 micro-batches; 16 layers of 8B at tp 2 and 20 of 70B at tp 8, as lone ranks; two mixtures of experts
#   lone       a lone rank of dp 64 at ZeRO 1 and 3: launches, idle time of the GPU, bytes
#   overlap    a pair at dp 2, ZeRO 2: the part of NCCL's time that has other kernels beside it
#   memcheck   compute-sanitizer over the kernels, if it is installed
#
# OUT (runs/quarter-hour) gets results.jsonl, a line a phase with its status, seconds, figures, clocks and power; PHASE.log;
# clocks.csv, from nvidia-smi throughout; and traces. A phase that fails or takes too long does not stop the others, and a case that
# fails does not stop its phase. quarter_hour.py makes docs/gpus.md's table of results.jsonl.
#
# Left out, since no program has it: all-to-alls and reduce-scatters of uneven and empty parts, grouped products, the router and the
# exchange of tokens against float64 (`pairs` has them only through losses); grouped_mm beside experts on a GPU; NCCL's time by stream.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
self=$root/tests/gpu/quarter_hour.sh
# The phases and their limits in seconds. LIMIT replaces them, in tests.
phases=(versions kernels attention pairs stopped peers large lone overlap memcheck)
declare -A limits=([versions]=30 [kernels]=90 [attention]=90 [pairs]=110 [stopped]=80 [peers]=160 [large]=110 [lone]=75 [overlap]=50
                   [memcheck]=45)
most=${MOST:-840}  # seconds in all

# The pairs: NAME | flags of the model, also on the CPU | flags of the mesh.
experts="--num-experts 4 --moe-router-topk 2 --disable-bias-linear --swiglu"
whole="--expert-tensor-parallel-size 1 --expert-model-parallel-size 2"
pairs=("tp2-sp||--tensor-model-parallel-size 2 --sequence-parallel"
       "pp2|--global-batch-size 4 --untie-embeddings-and-output-weights|--pipeline-model-parallel-size 2"
       "pp2-tied|--global-batch-size 4|--pipeline-model-parallel-size 2"
       "pp2-zb-h1|--global-batch-size 4|--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"
       "dp2-overlap||--zero-stage 2 --overlap-param-gather"
       "dp2-zero0||--zero-stage 0" "dp2-zero1||--zero-stage 1" "dp2-zero2||--zero-stage 2" "dp2-zero3||--zero-stage 3"
       "ep2-zero1|$experts|--expert-model-parallel-size 2 --zero-stage 1"
       "ep2-zero3|$experts|--expert-model-parallel-size 2 --zero-stage 3"
       "tp2-whole-experts|$experts|--tensor-model-parallel-size 2 --sequence-parallel $whole")
small=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --mock-data --vocab-size 256
       --micro-batch-size 1 --global-batch-size 8 --lr 1e-3 --train-iters 6 --eval-iters 0 --bf16)

if [[ ${1:-} == --dry-run ]]; then
  for phase in "${phases[@]}"; do echo "$phase: at most ${LIMIT:-${limits[$phase]}} s"; done
  for pair in "${pairs[@]}"; do echo "pair $pair"; done
  exit
fi
if [[ -e $root/env.sh ]]; then source "$root/env.sh"; export BIN=$root/bin; fi
bin=${BIN:-$root/build/cuda/bin} python=${PYTHON:-python3} cpu=${CPU_LOSSES:-$root/cpu-losses}
report=("$python" "$root/tests/gpu/quarter_hour.py")

if [[ ${1:-} == --cpu-losses ]]; then
  mkdir -p "${2:?FOLDER}"
  for pair in "${pairs[@]}"; do
    IFS='|' read -r name flags _ <<<"$pair"
    # shellcheck disable=SC2086
    "$bin/pretrain_gpt" "${small[@]}" $flags --device cpu --loss-csv "$2/$name.csv" >"$2/$name.log" 2>&1 || { tail -3 "$2/$name.log" >&2; exit 1; }
    rm "$2/$name".{log,jsonl}
  done
  [[ -x $bin/preprocess_data ]] || { echo "quarter_hour.sh: no $bin/preprocess_data: attention will have no documents" >&2; exit; }
  "$python" -c 'for i in range(400): print("{\"text\": \"%s\"}" % (f"document {i} " * (i * 7 % 90 + 5)))' >"$2/documents.jsonl"
  "$bin/preprocess_data" --input "$2/documents.jsonl" --output-prefix "$2/documents" --tokenizer-type ByteLevelTokenizer --append-eod >/dev/null
  rm "$2/documents.jsonl"
  exit
fi

out=$(realpath -m "${OUT:-runs/quarter-hour}")
export OUT=$out
if [[ ${1:-} != --phase ]]; then
  for phase; do [[ ${limits[$phase]:-} ]] || { echo "quarter_hour.sh: $phase is none of ${phases[*]}" >&2; exit 2; }; done
  (($# > 0)) || set -- "${phases[@]}"
  mkdir -p "$out"
  : >"$out/results.jsonl"
  : >"$out/clocks.csv"
  nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu,memory.used --format=csv,noheader,nounits --loop-ms=500 --id=0 \
    >"$out/clocks.csv" 2>"$out/clocks.log" &
  watcher=$!
  trap 'kill $watcher 2>/dev/null || true' EXIT
  for phase; do
    left=$((most - SECONDS)) limit=${LIMIT:-${limits[$phase]}} started=$SECONDS from=$(wc -l <"$out/clocks.csv") status=0
    ((limit <= left)) || limit=$left
    rm -f "$out/$phase.figures" "$out/$phase.log"
    if ((limit < 1)); then
      status=78
    else
      timeout --kill-after 5 "$limit" "$self" --phase "$phase" >"$out/$phase.log" 2>&1 </dev/null || status=$?
    fi
    "${report[@]}" record "$out" "$phase" $status $((SECONDS - started)) "$from" | tee -a "$out/results.jsonl" |
      cut -c1-150
  done
  "${report[@]}" table "$out/results.jsonl"
  exit
fi

phase=$2
scratch=$(mktemp -d "${TMPDIR:-/tmp}/quarter-hour.XXXXXX")
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}

# figure CASE KEY=VALUE...: for results.jsonl
figure() { (IFS=$'\t'; echo "$*") >>"$out/$phase.figures"; }
# try CASE COMMAND...: runs it, in a folder of its own. A failure is the case's, and the phase's in the end.
failed=0 from=0
try() {
  local status=0 started=$SECONDS
  from=$(wc -l <"$out/clocks.csv")
  mkdir -p "$1" && (cd "$1" && "${@:2}") || status=$?
  ((status == 0)) || { failed=1; figure "$1" status=failed "exit=$status" "seconds=$((SECONDS - started))"; }
}
# on_gpu FLAGS...: a run of the trainer, with its output in `log`; prints the end of that if it fails.
on_gpu() { "$bin/pretrain_gpt" "$@" --device cuda >log 2>&1 || { local status=$?; tail -5 log; return $status; }; }
# nccl_pair FLAGS...: two ranks of NCCL on one GPU. NCCL allows that of two machines, so each rank names another.
nccl_pair() {
  "$root/tools/mpirun.sh" 2 bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo exec "$@"' - \
    "$bin/pretrain_gpt" "$@" --device cuda --distributed-timeout-minutes 0.5 >log 2>&1 || { local status=$?; tail -5 log; return $status; }
}
# speed CSV: the median of the steps after the first two, as figures
speed() {
  tail -n +4 "$1" | cut -d, -f8 | sort -g | awk '{t[NR] = $1} END {if (!NR) exit 1; printf "ms=%.2f", t[int((NR + 1) / 2)]}' &&
    tail -n 1 "$1" | awk -F, '{printf "\tloss=%.4f", $3}'
}
# memory: the most that the GPU had in use during the case
memory() { tail -n "+$((from + 1))" "$out/clocks.csv" | cut -d, -f5 | sort -g | tail -1 | sed 's/^ */mib=/'; }

versions() {
  nvidia-smi
  figure gpu "name=$(nvidia-smi --query-gpu=name --format=csv,noheader --id=0)" \
    "driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader --id=0)"
  figure programs "trainer=$("$bin/pretrain_gpt" --version | head -1)" "torch=$("$python" -c 'import torch; print(torch.__version__)')" \
    "commit=$(cat "$root/commit" 2>/dev/null || git -C "$root" rev-parse HEAD)"
}

kernels() {
  local status=0
  "$root/tools/mpirun.sh" 2 "$bin/gpu_mpi_test" 2>&1 | tee log || status=$?
  figure gpu_mpi_test "passed=$(grep -c '^\[       OK' log || true)" "not_passed=$(grep -c '^\[  FAILED  \] .*ms)' log || true)"
  return $status
}

attention() {
  local tokens kind heads
  local random="--mock-data --vocab-size 1024" documents="--data-path $cpu/documents_text_document --split 100,0,0"
  local -A kinds=([causal]="$random" [window]="$random --window-size 511,0" [documents]="$documents --reset-attention-mask"
                  [alibi]="$random --position-embedding-type alibi")
  for tokens in 2048 8192; do
    for kind in causal window documents alibi; do
      for heads in 16 4; do try "$kind-$heads-$tokens" of_attention "$tokens" "$heads" "${kinds[$kind]}"; done
    done
  done
}
of_attention() { # TOKENS KEY_VALUE_HEADS FLAGS
  # shellcheck disable=SC2086
  on_gpu --num-layers 1 --hidden-size 2048 --num-attention-heads 16 --num-key-value-heads "$2" --seq-length "$1" --max-position-embeddings "$1" \
    --micro-batch-size 1 --global-batch-size 1 --lr 1e-4 --train-iters 4 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 \
    --bf16 --profile-step 4 --trace trace.json --loss-csv loss.csv $3 &&
    figure "${PWD##*/}" "$(speed loss.csv)" "$(memory)" "$("${report[@]}" trace trace.json attention)"
}

pairs() {
  local pair name flags mesh
  for pair in "${pairs[@]}"; do
    IFS='|' read -r name flags mesh <<<"$pair"
    try "$name" of_pair "$name" "$flags" "$mesh"
  done
}
of_pair() { # NAME FLAGS MESH
  local differences status=0
  # shellcheck disable=SC2086
  nccl_pair "${small[@]}" $2 $3 --loss-csv gpu.csv || return
  differences=$("${report[@]}" losses "$cpu/$1.csv" gpu.csv 2e-2) || status=$?
  figure "$1" "$differences"
  return $status
}

stopped() {
  local rank status=0 started
  nccl_pair "${small[@]}" --train-iters 1000000 --log-interval 1 &
  local pair=$!
  for ((i = 0; i < 300; ++i)); do grep -q '^iter' log 2>/dev/null && break; sleep 0.1; done
  rank=$(pgrep -n -P "$(pgrep -P $pair | head -1)" || true)
  [[ $rank ]] || { echo "no rank to stop"; return 1; }
  kill -STOP "$rank"
  started=$SECONDS
  wait $pair || status=$?
  kill -CONT "$rank" 2>/dev/null || true
  figure stopped "exit=$status" "seconds=$((SECONDS - started))" "says=$(grep -m1 -iE 'waited|has not come|NCCL: rank' log || true)"
  ((status != 0))
}

# The 1.3B model in bf16.
big=(--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --mock-data --vocab-size 50304
     --lr 1e-4 --lr-decay-style constant --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --bf16 --log-interval 1)
peers() {
  PEERS=bf16-compile ROUNDS=1 PYTHON=$python BIN=$bin "$root/benchmarks/gpu/run.sh" 1.3B | tee log
  grep '^|' log | tail -n +3 | while IFS='|' read -r _ rest; do figure "1.3B" "row=$(tr -s ' ' <<<"${rest//|/ }" | sed 's/^ //; s/ $//')"; done
}

llama=(--swiglu --normalization rmsnorm --use-rotary-position-embeddings --disable-bias-linear --untie-embeddings-and-output-weights --mock-data
       --micro-batch-size 1 --global-batch-size 1 --lr 1e-4 --lr-decay-style constant --attention-dropout 0 --hidden-dropout 0 --eval-iters 0
       --bf16 --log-interval 1 --train-iters 8)
large() {
  local mixture=(--hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --moe-router-topk)
  try 1.3B-8-micro-batches timed "${big[@]}" --micro-batch-size 4 --global-batch-size 32 --train-iters 8
  try 8B-tp2-16-layers timed "${llama[@]}" --num-layers 16 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-key-value-heads 8 \
    --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --tensor-model-parallel-size 2 --pretend-ranks 2
  try 70B-tp8-20-layers timed "${llama[@]}" --num-layers 20 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --num-key-value-heads 8 \
    --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --tensor-model-parallel-size 8 --pretend-ranks 8
  try 8-experts timed "${llama[@]}" "${mixture[@]}" 2 --num-layers 4 --num-experts 8 --moe-ffn-hidden-size 7168
  try 128-experts timed "${llama[@]}" "${mixture[@]}" 8 --num-layers 4 --num-experts 128 --moe-ffn-hidden-size 768
}
timed() { on_gpu "$@" --loss-csv loss.csv && figure "${PWD##*/}" "$(speed loss.csv)" "$(memory)"; }

lone() { for stage in 1 3; do try "dp64-zero$stage" of_lone $stage; done; }
of_lone() { # STAGE
  on_gpu "${big[@]}" --micro-batch-size 1 --global-batch-size 64 --train-iters 5 --zero-stage "$1" --pretend-ranks 64 --report-comm \
    --profile-step 5 --trace trace.json --loss-csv loss.csv && gzip -c trace.json >"$out/lone-zero$1.json.gz" &&
    figure "${PWD##*/}" "$(speed loss.csv)" "$("${report[@]}" trace trace.json)" "bytes=$(awk '$1 == "dp" {sum += $4} END {printf "%d", sum}' log)"
}

overlap() { try dp2-zero2 of_overlap; }
of_overlap() {
  nccl_pair "${big[@]}" --num-layers 8 --micro-batch-size 2 --global-batch-size 4 --zero-stage 2 --train-iters 5 --profile-step 5 \
    --trace trace.json --loss-csv loss.csv && gzip -c trace.json >"$out/overlap.json.gz" &&
    figure "${PWD##*/}" "$(speed loss.csv)" "$("${report[@]}" trace trace.json)"
}

memcheck() {
  command -v compute-sanitizer || return 77
  "$root/tools/mpirun.sh" 1 compute-sanitizer --error-exitcode 9 --launch-timeout 60 "$bin/gpu_mpi_test" \
    --gtest_filter='*Adam*:*Swiglu*:*Norms*:*Entropy*:*Squares*:*Dropout*:*Heads*:*Linear*:*Sinks*'
}

"$phase"
exit $failed
