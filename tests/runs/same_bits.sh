#!/usr/bin/env bash
# --same-bits: losses, norms, weights, moments and universal folders are the same bytes on every mesh, at every ZeRO stage, with and
# without sequence parallelism, recomputation and offload, for all micro-batch sizes and numbers of threads: as in one process. So
# are runs that resume on another mesh, directly, by ds_to_universal and by ds_reshard. Rows are in same_bits.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

flags=${model[*]}
common=(${flags/--hidden-size 24/} --same-bits --hidden-size 64 --num-layers 3 --train-iters 20)
write_documents
llama="--hidden-size 128 --num-attention-heads 8 --num-key-value-heads 4 --swiglu --normalization rmsnorm --disable-bias-linear
       --use-rotary-position-embeddings --untie-embeddings-and-output-weights --bf16"
ramp="--rampup-batch-size 12 12 60"
# flags_of MODEL
flags_of() {
  case $1 in
    gpt) model=("${common[@]}" --hidden-dropout 0.2) ;;
    untied) model=("${common[@]}" --untie-embeddings-and-output-weights --bf16 --position-embedding-type alibi --same-bits 8) ;;
    llama) model=("${common[@]}" $llama) ;;
    half) model=("${common[@]}" --fp16 --initial-loss-scale 67108864 --hysteresis 1 --hidden-dropout 0.1) ;;
    documents)
      local text=" ${common[*]} "
      text=${text/ --mock-data --vocab-size 257 / }
      text=${text/ --lr-warmup-iters 5 / } text=${text/ --train-iters 20 / }
      model=($text --data-path "$scratch/text_text_document" --split 100,0,0 --train-samples 300 $ramp --global-batch-size 24
             --reset-position-ids --reset-attention-mask --eod-mask-loss) ;;
  esac
}

# universal FOLDER: the hash of the states in the last universal folder.
universal() { (cd "$1/${last}_universal/zero" && find . -name '*.pt' ! -name optimizer_state.pt | sort | xargs cat | md5sum); }
rows=0 resharded=0
previous=""
while read -r name mesh zero sequence activations micro threads offload; do
  if [[ $name != "$previous" ]]; then
    flags_of "$name"
    rm -rf one ckpt before
    run 1,1,1,0 one.csv --save one --save-interval 10
    last=$(cat one/latest)
    convert one "$last"
    expected=$(universal one)
    previous=$name
    before=one
  fi
  more=(--micro-batch-size "$micro")
  [[ $sequence == whole ]] || more+=(--sequence-parallel)
  [[ $activations == keep ]] || more+=(--activation-checkpointing)
  [[ $offload == none ]] || more+=(--offload-optimizer nvme --nvme-path "$scratch")
  words="$name on $mesh, ZeRO $zero, ${more[*]}, $threads threads"
  if [[ $threads == 2 ]]; then
    (
      trainer=("$bin/pretrain_gpt")
      export OMP_NUM_THREADS=2
      run "$mesh,$zero" test.csv --save ckpt --save-interval 10 "${more[@]}"
    ) || exit 1
  else
    run "$mesh,$zero" test.csv --save ckpt --save-interval 10 "${more[@]}"
  fi
  same one.csv test.csv "$words"
  convert ckpt "$last"
  [[ $(universal ckpt) == "$expected" ]] ||
    fail "$words: weights or moments differ: $("$bin/ckpt" diff "one/$last" "ckpt/$last" | tail -5)"

  # The run before this one, from its step 10 on, on this mesh. DeepSpeed's pipelines, and so ds_reshard, know ZeRO 0 and 1 alone.
  IFS=, read -r tp pp dp <<<"$mesh"
  from=$before way=(--load-tag global_step10)
  if ((rows % 3 == 1)); then
    way=(--universal-checkpoint)
    convert "$from" global_step10
    echo -n global_step10_universal >"$from/latest_universal"
  elif ((rows % 3 == 2)) && { ((zero == 1)) || { ((pp == 1)) && ((zero > 1)); }; }; then
    from=resharded way=()
    rm -rf resharded
    "$bin/ds_reshard" --input_folder "$before/global_step10" --output_folder resharded/global_step10 \
        --target "tp=$tp,pp=$pp,dp=$dp,zero=$zero" >reshard.log 2>&1 || fail "$words: $(tail -3 reshard.log)"
    resharded=$((resharded + 1))
  fi
  run "$mesh,$zero" resumed.csv --load $from "${way[@]}" --save end "${more[@]}"
  same one.csv resumed.csv "$words, resumed" 11
  convert end "$last"
  [[ $(universal end) == "$expected" ]] || fail "$words: resumed, the end differs"
  rm -rf end
  [[ $before == one ]] || rm -rf "$before"
  mv ckpt ckpt$rows
  before=ckpt$rows
  rows=$((rows + 1))
done < <("$here/same_bits.py")
((resharded > 3)) || fail "only $resharded by ds_reshard"
echo "ok: $rows runs, and as many that resume ($resharded by ds_reshard), have the bits of one process"

flags_of gpt
run 1,1,1,0 one.csv
model=(${model[*]/--same-bits/})
run 1,1,1,0 plain.csv
flags_of gpt
close plain.csv one.csv 1e-4 1 "without --same-bits, to rounding"
refused "gradient norm (with --same-bits, infinite if.* is inf at iteration 1.* changed no weight" train 2,1,3,2 other.csv --init-method-std 3000
refused "give --same-bits 8, or --override-same-bits" train 1,1,1,0 other.csv --load one --same-bits 4 --untie-embeddings-and-output-weights \
    --bf16 --position-embedding-type alibi --allow-other-data
refused "must be divisible by --tensor-model-parallel-size (4); use --same-bits 4" train 4,1,1,0 other.csv --same-bits 2
refused "expected 1, 2, 4 or 8 blocks" train 1,1,1,0 other.csv --same-bits 3
refused "got --lora-rank (4)" train 1,1,1,0 other.csv --lora-rank 4
refused "is for dense models.*--num-experts (4)" train 1,1,1,0 other.csv --num-experts 4 --swiglu --disable-bias-linear
refused "erf GELU depends" train 1,1,1,0 other.csv --no-bias-gelu-fusion
refused "hidden-size (24) must be divisible by 16" train 1,1,1,0 other.csv --hidden-size 24
