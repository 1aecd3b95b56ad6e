#!/usr/bin/env bash
# Experts spread over ranks: losses agree to rounding on every mesh. Each row of expert_meshes.py resumes a checkpoint on another mesh,
# directly or by a universal folder, with its state bit-equal, and by ds_reshard. A resume on the same mesh is bit-identical.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

model+=(--swiglu --disable-bias-linear --normalization rmsnorm --use-rotary-position-embeddings --ffn-hidden-size 32
        --num-experts 8 --moe-ffn-hidden-size 16 --moe-layer-freq 2 --moe-shared-expert-intermediate-size 8
        --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 0.02
        --moe-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.001 --lr-decay-iters 25 --lr 1e-2 --global-batch-size 8)

# run MESH CSV FLAGS...: MESH is tp,pp,dp,zero,ep and, if tp does not cut experts, ,whole.
run() {
  local tp pp dp zero ep whole flags=()
  IFS=, read -r tp pp dp zero ep whole <<<"$1"
  [[ -z $whole ]] || flags=(--expert-tensor-parallel-size 1 --sequence-parallel)
  train "$tp,$pp,$dp,$zero" "$2" --expert-model-parallel-size "$ep" "${flags[@]}" "${@:3}" >log || fail "$*: $(tail -5 log)"
}

run 1,1,1,0,1 one.csv --train-iters 25
for row in 1,1,2,0,2:8 1,1,4,1,4:25 1,2,2,3,2:8 2,2,2,2,2:8 2,1,2,1,4,whole:8 2,1,4,3,2,whole:25; do
  mesh=${row%:*} steps=${row#*:}
  run $mesh other.csv --train-iters $steps
  close <(head -$((steps + 1)) one.csv) other.csv 1e-5 1 "experts, tp,pp,dp,zero,ep = $mesh"
done
run 1,1,4,0,2 two.csv --train-iters 25
for row in "25 --zero-stage 1" "8 --activation-checkpointing" "8 --pipeline-model-parallel-size 2 --local-ranks 8"; do
  read -r steps flags <<<"$row"
  run 1,1,4,0,2 other.csv --train-iters $steps $flags
  same <(head -$((steps + 1)) two.csv) other.csv "experts over two of four ranks, $flags"
done

python3 "$here/expert_meshes.py" >rows || fail "expert_meshes.py"
mapfile -t rows <rows
run 1,1,1,0,1 start.csv --train-iters 25 --exit-interval 3 --save begin
# Each source runs from step 3 to 8 and saves at 6 on its way.
for from in $(printf '%s\n' "${rows[@]}" | cut -d' ' -f1 | uniq); do
  run "$from" straight.csv --train-iters 25 --exit-interval 8 --load begin --save "$from" --save-interval 6
  back_to "$from" global_step6 global_step8
  run "$from" "$from.csv" --train-iters 25 --exit-interval 8 --load "$from"
  same straight.csv "$from.csv" "a resume on the same mesh, $from" 7
  "$bin/ckpt" verify "$from/global_step6" >verify.log || fail "$from: $(cat verify.log)"
  ! "$bin/ckpt" diff begin/global_step3 "$from/global_step6" >diff.log || fail "$from: three steps changed nothing"
  convert "$from" global_step6
done

for row in "${rows[@]}"; do
  read -r from to way <<<"$row"
  folder=() cut=global_step6
  [[ $way == direct ]] || folder=(--universal-checkpoint) cut=global_step6_universal
  rm -rf moved cut
  run "$to" /dev/null --train-iters 6 --load "$from" --save moved "${folder[@]}"
  "$bin/ckpt" diff "$from/global_step6" moved/global_step6 >diff.log || fail "$row: $(cat diff.log)"
  run "$to" moved.csv --train-iters 25 --exit-interval 8 --load "$from" "${folder[@]}"
  close "$from.csv" moved.csv 1e-6 7 "$from -> $to, $way: $(grep -o '[0-9]* tensors compared, 0 differences' diff.log); next losses"

  # ds_reshard writes what a run there would have saved: a run goes on from it bit for bit as from the source.
  IFS=, read -r tp pp dp zero ep whole <<<"$to"
  [[ -z $whole && ($from != *whole || $tp == 1) ]] || continue
  "$bin/ds_reshard" --input_folder "$from/$cut" --output_folder cut/global_step6 --target "tp=$tp,pp=$pp,dp=$dp,zero=$zero,ep=$ep" \
      >reshard.log 2>&1 || fail "$row, cut: $(tail -3 reshard.log)"
  echo global_step6 >cut/latest
  "$bin/ckpt" verify cut/global_step6 >verify.log || fail "$row, cut: $(cat verify.log)"
  "$bin/ckpt" diff "$from/$cut" cut/global_step6 >diff.log || fail "$row, cut: $(cat diff.log)"
  run "$to" cut.csv --train-iters 25 --exit-interval 8 --load cut
  same moved.csv cut.csv "$from/$cut, cut for $to" 7
done

# ep 2 -> 4 -> 1 and pp 4 -> ep 4, as one run.
run 1,1,4,1,2 parts.csv --train-iters 25 --exit-interval 5 --save path
run 1,1,4,3,4 parts.csv --train-iters 25 --exit-interval 10 --load path --save path2
run 1,1,2,0,1 parts.csv --train-iters 25 --exit-interval 15 --load path2 --save path3
run 1,4,1,0,1 parts.csv --train-iters 25 --exit-interval 20 --load path3 --save path4
run 1,1,4,2,4 parts.csv --train-iters 25 --load path4
close one.csv parts.csv 1e-5 1 "ep 2 -> 4 -> 1 -> pp 4 -> ep 4"
