#!/usr/bin/env bash
# Experts spread over ranks: losses agree to rounding on every mesh, and a checkpoint resumes on any other, directly and by a
# universal folder, with its state bit-equal. A resume on the same mesh is bit-identical.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

model+=(--swiglu --disable-bias-linear --normalization rmsnorm --use-rotary-position-embeddings --ffn-hidden-size 32
        --num-experts 8 --moe-ffn-hidden-size 16 --moe-layer-freq 2 --moe-shared-expert-intermediate-size 8
        --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 0.02
        --moe-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.001 --lr-decay-iters 50 --lr 1e-2 --global-batch-size 8)

# run MESH CSV FLAGS...: MESH is tp,pp,dp,zero,ep and, if tp does not cut experts, ,whole.
run() {
  local tp pp dp zero ep whole flags=()
  IFS=, read -r tp pp dp zero ep whole <<<"$1"
  [[ -z $whole ]] || flags=(--expert-tensor-parallel-size 1 --sequence-parallel)
  train "$tp,$pp,$dp,$zero" "$2" --expert-model-parallel-size "$ep" "${flags[@]}" "${@:3}" >log || fail "$*: $(tail -5 log)"
}

run 1,1,1,0,1 one.csv --train-iters 50
for mesh in 1,1,2,0,2 1,1,4,1,4 1,2,2,3,2 2,2,2,2,2 2,1,2,1,4,whole 2,1,4,3,2,whole; do
  run $mesh other.csv --train-iters 50
  close one.csv other.csv 1e-5 1 "experts, tp,pp,dp,zero,ep = $mesh"
done
run 1,1,4,0,2 two.csv --train-iters 50
for flags in "--zero-stage 1" "--activation-checkpointing"; do
  run 1,1,4,0,2 other.csv --train-iters 50 $flags
  same two.csv other.csv "experts over two of four ranks, $flags"
done
run 1,2,4,0,2 other.csv --train-iters 50
same two.csv other.csv "experts over two of four ranks, two stages"

# Every mesh below saves a state that each of them loads. `moved` loads it and saves it again at once.
meshes=(1,1,1,0,1 1,1,2,0,2 1,1,4,1,2 1,1,4,2,4 1,1,4,3,2 2,1,2,1,2 2,1,4,3,4 1,2,2,3,2 1,4,2,2,1 2,2,2,0,2 2,1,2,1,4,whole
        2,1,2,3,2,whole 2,1,4,0,2,whole)
run 1,1,1,0,1 start.csv --train-iters 50 --exit-interval 3 --save begin
for i in "${!meshes[@]}"; do
  run "${meshes[i]}" "parts$i.csv" --train-iters 50 --exit-interval 6 --load begin --save "ckpt$i"
  run "${meshes[i]}" on.csv --train-iters 50 --exit-interval 8 --load "ckpt$i"
  run "${meshes[i]}" "straight.csv" --train-iters 50 --exit-interval 8 --load begin
  same straight.csv on.csv "a resume on the same mesh, ${meshes[i]}" 7
  "$bin/ckpt" verify "ckpt$i/global_step6" >verify.log || fail "${meshes[i]}: $(cat verify.log)"
  [[ $("$bin/ckpt" diff begin/global_step3 "ckpt$i/global_step6" | tail -1) != *" 0 differ"* ]] || fail "steps changed nothing"
  convert "ckpt$i" global_step6
  "$bin/ckpt" diff "ckpt$i/global_step6" "ckpt$i/global_step6_universal" >diff.log || fail "${meshes[i]}: $(cat diff.log)"
  echo "ok: ${meshes[i]}: verified, and its universal folder has the same state"
done

# Each goes on as several others do, and none has more than rounding between its next losses and theirs.
for i in "${!meshes[@]}"; do
  for step in 1 $((3 + i % 4)); do
    j=$(((i + step) % ${#meshes[@]}))
    folder=$([[ $step == 1 ]] || echo --universal-checkpoint)
    rm -rf moved
    run "${meshes[j]}" moved.csv --train-iters 6 --load "ckpt$i" --save moved $folder
    "$bin/ckpt" diff "ckpt$i/global_step6" moved/global_step6 >diff.log || fail "${meshes[i]} -> ${meshes[j]}: $(cat diff.log)"
    run "${meshes[j]}" moved.csv --train-iters 50 --exit-interval 8 --load "ckpt$i" $folder
    run "${meshes[i]}" stayed.csv --train-iters 50 --exit-interval 8 --load "ckpt$i"
    close stayed.csv moved.csv 1e-6 7 "${meshes[i]} -> ${meshes[j]} $folder: state bit-equal, next losses"
  done
done

# ds_reshard writes what a run on the other mesh would have saved: it verifies, and a run goes on from it bit for bit as from the source.
for i in "${!meshes[@]}"; do
  for step in $((i % 2 == 0 ? 2 : 5)); do
    j=$(((i + step) % ${#meshes[@]}))
    IFS=, read -r tp pp dp zero ep whole <<<"${meshes[j]}"
    [[ -z $whole && (${meshes[i]} != *whole || $tp == 1) ]] || continue
    source=ckpt$i/global_step6$([[ $step == 5 ]] && echo _universal || true)
    rm -rf cut
    "$bin/ds_reshard" --input_folder "$source" --output_folder cut/global_step6 --target "tp=$tp,pp=$pp,dp=$dp,zero=$zero,ep=$ep" \
        >reshard.log 2>&1 || fail "${meshes[i]} cut for ${meshes[j]}: $(tail -3 reshard.log)"
    echo global_step6 >cut/latest
    "$bin/ckpt" verify cut/global_step6 >verify.log || fail "${meshes[i]} cut for ${meshes[j]}: $(cat verify.log)"
    "$bin/ckpt" diff "$source" cut/global_step6 >diff.log || fail "${meshes[i]} cut for ${meshes[j]}: $(cat diff.log)"
    run "${meshes[j]}" cut.csv --train-iters 50 --exit-interval 8 --load cut
    run "${meshes[j]}" moved.csv --train-iters 50 --exit-interval 8 --load "ckpt$i"
    same moved.csv cut.csv "$source of ${meshes[i]}, cut for ${meshes[j]}" 7
  done
done

# ep 2 -> 4 -> 1 and pp 4 -> ep 4, as one run.
run 1,1,4,1,2 parts.csv --train-iters 50 --exit-interval 10 --save path
run 1,1,4,3,4 parts.csv --train-iters 50 --exit-interval 20 --load path --save path2
run 1,1,2,0,1 parts.csv --train-iters 50 --exit-interval 30 --load path2 --save path3
run 1,4,1,0,1 parts.csv --train-iters 50 --exit-interval 40 --load path3 --save path4
run 1,1,4,2,4 parts.csv --train-iters 50 --load path4
close one.csv parts.csv 1e-5 1 "ep 2 -> 4 -> 1 -> pp 4 -> ep 4"
