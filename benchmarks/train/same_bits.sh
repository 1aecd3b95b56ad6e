#!/usr/bin/env bash
# Times training steps with --same-bits beside the same steps without. Runs alternate. Each figure is the median of ROUNDS runs'
# median step, without the first three. The last rows are the layers of the same model in plain PyTorch at tp 2, with gathered
# weights and whole products beside the usual sums (torch_same_bits.py).
#
#   PYTHON=python ROUNDS=5 benchmarks/train/same_bits.sh [FOLDER_OF_EXECUTABLES [SIZE]...]     default: medium gpt2
#
# SIZE: medium (6 layers, hidden 384, seq 256, batch 8, vocab 256), gpt2 (12, 768, 512, 2, 50304). PYTHON has torch.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
rounds=${ROUNDS:-5} python=${PYTHON:-python3}

# LAYERS HIDDEN HEADS SEQ BATCH VOCAB STEPS of a size; BATCH is the step's.
shape_of() {
  case $1 in
    medium) echo 6 384 6 256 8 256 13 ;;
    gpt2) echo 12 768 12 512 2 50304 8 ;;
    *) echo "same_bits.sh: $1 is not medium or gpt2" >&2; exit 2 ;;
  esac
}

# step TP DP SHAPE... FLAGS...: the median step, ms
step() {
  local ranks=$(($1 * $2))
  OMP_NUM_THREADS=$((2 / ranks)) "$bin/pretrain_gpt" --local-ranks $ranks --tensor-model-parallel-size "$1" --num-layers "$3" --hidden-size "$4" \
    --num-attention-heads "$5" --seq-length "$6" --max-position-embeddings "$6" --mock-data --micro-batch-size $(($7 / $2)) \
    --global-batch-size "$7" --vocab-size "$8" --train-iters "$9" --lr 1e-4 --lr-decay-style constant --attention-dropout 0 \
    --hidden-dropout 0 --eval-iters 0 --device cpu --loss-csv steps.csv "${@:10}" >run.log || { tail -5 run.log >&2; exit 1; }
  awk -F, 'NR > 4 {print $8}' steps.csv | median
  echo
}

echo "| size | tp x dp | precision | without, ms | with, ms | ratio |"
echo "|---|---|---|---|---|---|"
shift $(($# > 0 ? 1 : 0))
sizes=("$@")
(($#)) || sizes=(medium gpt2)
for size in "${sizes[@]}"; do
  read -ra shape < <(shape_of "$size")
  meshes=("1 1" "1 2")
  [[ $size == gpt2 ]] || meshes+=("2 1")
  for mesh in "${meshes[@]}"; do
    for precision in fp32 bf16; do
      flags=()
      [[ $precision == fp32 ]] || flags=(--bf16)
      rm -f plain same
      for ((round = 0; round < rounds; ++round)); do
        # shellcheck disable=SC2086
        step $mesh "${shape[@]}" "${flags[@]}" >>plain
        # shellcheck disable=SC2086
        step $mesh "${shape[@]}" "${flags[@]}" --same-bits >>same
      done
      awk -v row="| $size | ${mesh/ / x } | $precision" -v plain="$(median plain)" -v same="$(median same)" \
        'BEGIN {printf "%s | %.0f | %.0f | %.2f |\n", row, plain, same, same / plain}'
    done
  done
  echo "| $size, plain PyTorch | 2 x 1 | fp32 | $("$python" "$repository/benchmarks/train/torch_same_bits.py" "${shape[@]:0:5}" 6 "$rounds" | sed 's/ / | /g') |"
done
