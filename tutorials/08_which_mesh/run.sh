#!/usr/bin/env bash
# Which mesh? Operations per byte; the sum of a mesh for 7B on 8 GPUs and 70B on 64, by hand beside plan; one axis changed at a time;
# and plan's predictions beside what six meshes of two ranks measure here.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs plan
lesson=tutorials/$tutorial
gpus=(--preset h100 --gpus)
intensity() { sed -n "s/^$1: .* \([0-9.]*\)  [a-z]*$/\1/p" "$out/output.txt"; }
ask 5% "How many operations for a byte has a product of 4096 x 4096 by 4096 x 21760 in bf16?" 'intensity "4096 tokens"'
ask 5% "How many has the same product for one token?" 'intensity "1 token"'

# product NAME M N K: operations and bytes of [M, K] x [K, N] in bf16, and what limits an H100, which does 989e12 operations and moves
# 3.35e12 bytes a second.
product() {
  say "$(awk -v name="$1" -v M="$2" -v N="$3" -v K="$4" 'BEGIN {
    operations = 2 * M * N * K; bytes = 2 * (M * K + K * N + M * N); ratio = operations / bytes
    printf "%-42s %10.3e %10.3e %8.1f  %s", name, operations, bytes, ratio, (ratio > 989e12 / 3.35e12 ? "arithmetic" : "memory")}')"
}
say "$(printf '%-42s %10s %10s %8s  %s' "a product in bf16, M x K by K x N" operations bytes ratio "limited by")"
product "4096 tokens: 4096 x 4096 by 4096 x 21760" 4096 21760 4096
product "the same on tp 8: by 4096 x 2720" 4096 2720 4096
product "256 tokens: 256 x 4096 by 4096 x 21760" 256 21760 4096
product "1 token: 1 x 4096 by 4096 x 21760" 1 21760 4096

# planned FILE FLAGS...: shows and runs plan, with its output in $out/FILE.
planned() {
  local words=("${@:2}")
  [[ $2 != "${model[0]}" ]] || words=('$model' "${words[@]:${#model[@]}}")
  say "$(wrapped plan "${words[@]}" ">\$out/$1")"
  "$bin/plan" "${@:2}" >"$out/$1"
}

# by_hand SIZE GPUS MESH
by_hand() {
  planned "$1.txt" --params "$1" "${gpus[@]}" "$2" --top 4
  say "$(sed '/^mesh /,/^$/!d; /^$/d' "$out/$1.txt")"
  planned "$1.json" --params "$1" "${gpus[@]}" "$2" --explain "$3" --json
  show "$lesson/by_hand.py" "$out/$1.json"
  "$lesson/by_hand.py" "$out/$1.json" >"$out/hand.txt" || { cat "$out/hand.txt" >&2; fail "a number by hand is not plan's"; }
  say "$(sed 's/ *$//' "$out/hand.txt")"
  say "ok: $1 on $2 GPUs, $3: each number by hand is near plan's"
}
by_hand 7B 8 tp1-pp2-dp4-zero1-b2
by_hand 70B 64 tp4-pp4-dp4-zero1-b1

planned all.txt --params 7B "${gpus[@]}" 8 --top 0
say "one thing changed at a time:" "$(grep '^mesh ' "$out/all.txt")"
for mesh in tp1-pp2-dp4-zero1-b2 tp2-pp2-dp2-zero1-b2 tp2-pp2-dp2-zero1-b2-sp tp1-pp4-dp2-zero1-b2 tp1-pp1-dp8-zero1-b2 \
            tp1-pp2-dp4-zero0-b2 tp1-pp2-dp4-zero3-b2 tp1-pp2-dp4-zero1-b1 tp1-pp2-dp4-zero1-b4 tp1-pp2-dp4-zero1-b2-recompute; do
  say "$(grep "^$mesh " "$out/all.txt")"
done

# Six meshes of two ranks, each of them planned and run.
model=(--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
       --attention-dropout 0 --hidden-dropout 0)
data=(--mock-data --vocab-size 512)
recipe=(--global-batch-size 8 --train-iters 6 --lr 1e-3 --seed 1234 --eval-iters 0 --log-interval 4 --device cpu)
show_settings
for mesh in tp1-pp1-dp2-zero0-b4 tp1-pp1-dp2-zero3-b1 tp1-pp1-dp2-zero1-b1-recompute tp2-pp1-dp1-zero0-b1 tp2-pp1-dp1-zero0-b4-sp \
            tp1-pp2-dp1-zero0-b1; do
  planned "$mesh.json" "${model[@]}" --vocab-size 512 --global-batch-size 8 --preset cpu --gpus 2 --explain "$mesh" --json
  [[ $mesh =~ ^tp(.)-pp(.)-dp(.)-zero(.)-b(.)(.*) ]]
  parts=("${BASH_REMATCH[@]:1}") more=()
  [[ ${parts[5]} != *-sp* ]] || more+=(--sequence-parallel)
  [[ ${parts[5]} != *-recompute ]] || more+=(--activation-checkpointing)
  train "$(IFS=,; echo "${parts[*]:0:4}")" "$mesh" --micro-batch-size "${parts[4]}" "${more[@]}" --report-memory --report-comm
  show "$lesson/beside.py" "$out/$mesh.json" "$out/$mesh.csv"
  rows+=("$("$lesson/beside.py" "$out/$mesh.json" "$out/$mesh.csv")") || fail "$mesh: ${rows[-1]}"
done
row() { say "$(printf '%-30s %9s %9s %12s %12s %9s %9s' "$@")"; }
row "" MiB MiB bytes bytes ms ms
row mesh planned measured planned measured planned measured
say "${rows[@]}" "ok: plan's memory is within 5 % of what was measured, and its calls and bytes are equal in each group"
