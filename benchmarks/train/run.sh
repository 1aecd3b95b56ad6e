#!/usr/bin/env bash
# Times training steps of pretrain_gpt against the same steps of a plain PyTorch script (torch_gpt.py), eager and compiled. Both
# have the same weights, data, maths and threads, without dropout. The runs alternate. Each figure is the median of ROUNDS runs'
# median step, without the first three steps. Stops if the last step's losses differ more than the precision explains.
#
#   PYTHON=python ROUNDS=5 benchmarks/train/run.sh [FOLDER_OF_EXECUTABLES [SIZE]...]     default: all; PRECISIONS="fp32 bf16"
#
# SIZE: small (4 layers, hidden 128, seq 128, batch 8, vocab 256), medium (6, 384, 256, 8, 256), gpt2 (12, 768, 512, 1, 50304);
# for GPUs (DEVICE=cuda, see benchmarks/gpu/run.sh) 124M, 350M, 1.3B. PYTHON has the torch version that we link. GEMM is the
# rate of torch.mm at 2048^3 in that precision, in the same run. PEAK, in GFLOP/s, replaces it, as on a GPU.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
train=$repository/benchmarks/train
rounds=${ROUNDS:-5} python=${PYTHON:-python3} device=${DEVICE:-cpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} TORCHINDUCTOR_CACHE_DIR=$scratch/inductor

# LAYERS HIDDEN HEADS SEQ BATCH VOCAB STEPS of a size.
shape_of() {
  case $1 in
    small) echo 4 128 4 128 8 256 60 ;;
    medium) echo 6 384 6 256 8 256 13 ;;
    gpt2) echo 12 768 12 512 1 50304 8 ;;
    124M) echo 12 768 12 1024 16 50304 23 ;;
    350M) echo 24 1024 16 1024 16 50304 23 ;;
    1.3B) echo 24 2048 16 2048 4 50304 23 ;;
    *) echo "run.sh: $1 is not small, medium, gpt2, 124M, 350M or 1.3B" >&2; exit 2 ;;
  esac
}

ours() { # LAYERS HIDDEN HEADS SEQ BATCH VOCAB STEPS FLAGS...
  "$bin/pretrain_gpt" --num-layers "$1" --hidden-size "$2" --num-attention-heads "$3" --seq-length "$4" --max-position-embeddings "$4" \
    --mock-data --micro-batch-size "$5" --global-batch-size "$5" --vocab-size "$6" --train-iters "$7" --lr 1e-4 \
    --lr-decay-style constant --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --device "$device" "${@:8}" || { echo "ours failed" >&2; exit 1; }
}

# Reads a line "MS LOSS" per step and prints the median MS of all but the first three. The last loss goes to the file $1.
middle() { tail -n +4 | tee >(tail -1 | cut -d' ' -f2 >"$1") | sort -g | awk '{t[NR] = $1} END {print t[int((NR + 1) / 2)]}'; }

# Writes the peak memory of the GPU while a command runs, in MiB, to the file $1.
watch_gpu() { # FILE COMMAND...
  local file=$1
  shift
  if [[ $device == cpu ]]; then "$@"; return; fi
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=200 --id=0 >used &
  local watcher=$! status=0
  "$@" || status=$?
  kill $watcher
  sort -g used | tail -1 >"$file"
  return $status
}

one() { # WHO SHAPE...: the median step, ms; memory to WHO.rss, of the process or of the GPU
  local who=$1
  shift
  case $who in
    ours)
      watch_gpu ours.gpu ours "$@" "${flags[@]}" --loss-csv ours.csv >ours.log
      sed -n 's/^done.*per rank \([0-9]*\).*/\1/p' ours.log >ours.rss
      tail -n +2 ours.csv | awk -F, '{print $8, $3}' | middle ours.loss
      ;;
    *)
      watch_gpu "$who.gpu" "$python" "$train/torch_gpt.py" start/global_step1/mp_rank_00_model_states.pt "${@:1:6}" "${who%-*}" "${who#*-}" "$7" \
        "$device" >torch.log 2>torch.err || { tail -5 torch.err >&2; exit 1; }
      sed -n 's/^peak memory \([0-9]*\).*/\1/p' torch.log >"$who.rss"
      awk '/^step/ {print $6, $4}' torch.log | middle "$who.loss"
      ;;
  esac
  if [[ $device != cpu ]]; then mv "$who.gpu" "$who.rss"; fi
}

row() { # SIZE PRECISION
  local shape who flags peers=(fp32-eager fp32-compile)
  read -ra shape < <(shape_of "$1")
  flags=()
  [[ $2 == fp32 ]] || flags=(--bf16) peers=(${PEERS:-bf16-eager bf16-compile autocast-eager autocast-compile})
  rm -rf start ./*.ms
  ours "${shape[@]:0:6}" 1 --lr 1e-30 --save start --no-save-optim "${flags[@]}" >start.log   # a step that changes nothing
  for ((round = 0; round < rounds; ++round)); do
    for who in ours "${peers[@]}"; do one "$who" "${shape[@]}" >>"$who.ms"; done
    if [[ ${PEAK:-} ]]; then echo "$PEAK"; else "$python" "$train/gemm_rate.py" "$2" "$device"; fi >>gemm.ms
  done
  for who in ours "${peers[@]}"; do
    awk -v a="$(cat ours.loss)" -v b="$(cat "$who.loss")" -v most="$([[ $2 == fp32 ]] && echo 1e-4 || echo 2e-2)" \
      'BEGIN {d = a > b ? a - b : b - a; exit !(d <= most * a)}' || { echo "losses differ: $(cat ours.loss), $who $(cat "$who.loss")" >&2; exit 1; }
    awk -v size="$1" -v who="$who" -v ms="$(median "$who.ms")" -v ours="$(median ours.ms)" -v tokens=$((shape[3] * shape[4])) \
      -v l="${shape[0]}" -v h="${shape[1]}" -v s="${shape[3]}" -v v="${shape[5]}" -v gemm="$(median gemm.ms)" -v loss="$(cat "$who.loss")" \
      -v rss="$(cat "$who.rss")" -v precision="$2" 'BEGIN {
        flops = 6 * tokens * (12 * l * h * h + v * h + l * s * h)   # the scores of a causal attention: half of them
        printf "| %s | %s | %s | %.1f | %.0f | %.2f | %.0f | %s | %s |\n", size, precision, who, ms, tokens / ms * 1e3, ms / ours, \
          100 * flops / ms / 1e6 / gemm, rss, loss}'
  done
}

echo "| size | precision | | ms a step | tokens/s | time / ours | % of GEMM | peak, MiB | last loss |"
echo "|---|---|---|---|---|---|---|---|---|"
shift $(($# > 0 ? 1 : 0))
sizes=("${@:-small}")
if (($# == 0)); then sizes=(small medium gpt2); fi
for size in "${sizes[@]}"; do
  for precision in ${PRECISIONS:-fp32 bf16}; do row "$size" "$precision"; done
done
