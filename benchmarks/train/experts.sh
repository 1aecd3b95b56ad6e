#!/usr/bin/env bash
# Times training steps of a mixture of experts against the same steps of a plain PyTorch script (torch_experts.py), which loops over the
# experts or calls grouped_mm. The runs alternate. Each figure is the median of ROUNDS runs' median step, without the first three
# steps. Stops if the last step's losses differ more than the precision explains.
#
#   PYTHON=python ROUNDS=5 benchmarks/train/experts.sh [FOLDER_OF_EXECUTABLES]          PRECISIONS="fp32 bf16"
#
# Two processes of pretrain_gpt with --expert-model-parallel-size 2 are timed too, on as many cores as one of two threads.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
train=$repository/benchmarks/train
rounds=${ROUNDS:-5} python=${PYTHON:-python3} threads=${OMP_NUM_THREADS:-$(nproc)}

# LAYERS HIDDEN HEADS SEQ BATCH VOCAB EXPERTS CHOSEN FFN STEPS
shapes=("4 256 8 256 4 256 8 2 512 13" "4 256 8 128 4 256 64 4 128 13")

ours() { # RANKS SHAPE... FLAGS...
  "$bin/pretrain_gpt" --local-ranks "$1" --num-layers "$2" --hidden-size "$3" --num-attention-heads "$4" --seq-length "$5" \
    --max-position-embeddings "$5" --mock-data --micro-batch-size $(($6 / $1)) --global-batch-size "$6" --vocab-size "$7" \
    --num-experts "$8" --moe-router-topk "$9" --moe-ffn-hidden-size "${10}" --train-iters "${11}" --lr 1e-4 --lr-decay-style constant \
    --swiglu --disable-bias-linear --normalization rmsnorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --device cpu --loss-csv ours.csv "${@:12}" >ours.log || { tail -5 ours.log >&2; exit 1; }
}

# Reads a line "MS LOSS" per step and prints the median MS of all but the first three. The last loss goes to the file $1.
middle() { tail -n +4 | tee >(tail -1 | cut -d' ' -f2 >"$1") | sort -g | awk '{t[NR] = $1} END {print t[int((NR + 1) / 2)]}'; }

one() { # WHO SHAPE...
  case $1 in
    one) OMP_NUM_THREADS=$threads ours 1 "${@:2}" "${flags[@]}" && tail -n +2 ours.csv | awk -F, '{print $8, $3}' | middle one.loss ;;
    ep2) OMP_NUM_THREADS=1 ours 2 "${@:2}" "${flags[@]}" --expert-model-parallel-size 2 && tail -n +2 ours.csv | awk -F, '{print $8, $3}' | middle ep2.loss ;;
    *)
      OMP_NUM_THREADS=$threads "$python" "$train/torch_experts.py" start "${@:2:9}" "$precision" "$1" "${11}" >torch.log 2>torch.err || { tail -3 torch.err >&2; exit 1; }
      awk '/^step/ {print $6, $4}' torch.log | middle "$1.loss"
      ;;
  esac
}

echo "| experts, chosen, width; hidden | precision | | ms a step | time / ours | last loss |"
echo "|---|---|---|---|---|---|"
for line in "${shapes[@]}"; do
  read -ra shape <<<"$line"
  for precision in ${PRECISIONS:-fp32 bf16}; do
    flags=()
    [[ $precision == fp32 ]] || flags=(--bf16)
    rm -rf begin start ./*.ms
    ours 1 "${shape[@]:0:9}" 1 --lr 1e-30 --save begin "${flags[@]}" --zero-stage 1
    "$bin/zero_to_fp32" begin start >fp32.log
    who=(one ep2 loop)
    if OMP_NUM_THREADS=1 "$python" "$train/torch_experts.py" start "${shape[@]:0:9}" "$precision" grouped 1 >torch.log 2>torch.err; then
      who+=(grouped)
    else
      echo "grouped_mm does not run here in $precision: $(tail -1 torch.err)" >&2
    fi
    for ((round = 0; round < rounds; ++round)); do
      for each in "${who[@]}"; do one "$each" "${shape[@]}" >>"$each.ms"; done
    done
    for each in "${who[@]}"; do
      awk -v a="$(cat one.loss)" -v b="$(cat "$each.loss")" -v most="$([[ $precision == fp32 ]] && echo 1e-4 || echo 2e-2)" \
        'BEGIN {d = a > b ? a - b : b - a; exit !(d <= most * a)}' || { echo "losses differ: $(cat one.loss), $each $(cat "$each.loss")" >&2; exit 1; }
      awk -v ms="$(median "$each.ms")" -v ours="$(median one.ms)" -v who="$each" -v loss="$(cat "$each.loss")" -v p="$precision" \
        -v what="${shape[6]}, ${shape[7]}, ${shape[8]}; ${shape[1]}" 'BEGIN {printf "| %s | %s | %s | %.1f | %.2f | %s |\n", what, p, who, ms, ms / ours, loss}'
    done
  done
done
