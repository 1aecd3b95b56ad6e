#!/usr/bin/env bash
# Runs the rows of resume_matrix.py: trains 3 steps and saves, then loads elsewhere in one of three ways. A save right after
# loading holds the same weights, moments and steps bit by bit, as ckpt and gather.py find. The first loss is that of the run
# that continued unchanged.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

model=(--num-layers 5 --seq-length 12 --max-position-embeddings 12 --attention-dropout 0.1 --hidden-dropout 0.1
       --make-vocab-size-divisible-by 8 --mock-data --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-decay-iters 12
       --lr-warmup-iters 3 --clip-grad 1.0 --eval-iters 0 --log-interval 100)
gpt="--hidden-size 24 --num-attention-heads 12"
llama="--swiglu --normalization rmsnorm --disable-bias-linear --vocab-size 17"
grouped="--hidden-size 48 --num-attention-heads 24 --num-key-value-heads 12 --ffn-hidden-size 96 --use-rotary-position-embeddings
         --untie-embeddings-and-output-weights"
declare -A flags=(  # by the words in a row
  [gpt]="$gpt --vocab-size 257"
  [gpt-untied]="$gpt --vocab-size 127 --untie-embeddings-and-output-weights"
  [bloom]="$gpt --vocab-size 257 --position-embedding-type alibi --embed-layernorm"
  [llama]="$llama $grouped"
  [llama-tiny]="$llama --hidden-size 4 --num-attention-heads 4 --ffn-hidden-size 8"
  [mistral]="$llama $grouped --window-size 4,0" [qwen2]="$llama $grouped --add-qkv-bias"
  [qwen3]="$llama $grouped --kv-channels 4 --qk-layernorm" [phi3]="$llama $grouped --kv-channels 4 --rotary-percent 0.5"
  [gemma]="$gpt --kv-channels 4 --vocab-size 257 --geglu --normalization rmsnorm --disable-bias-linear --ffn-hidden-size 48
           --apply-layernorm-1p --apply-embedding-scaling --position-embedding-type rope"
  [gpt-neox]="$gpt --kv-channels 4 --vocab-size 127 --untie-embeddings-and-output-weights --position-embedding-type rope
              --rotary-percent 0.5 --use-parallel-residual"
  [opt]="$gpt --vocab-size 257 --relu --position-embedding-offset 2"
  [falcon]="$gpt --vocab-size 257 --position-embedding-type rope --use-parallel-residual --disable-bias-linear"
  [adam]="" [sgd]="--optimizer sgd" [lion]="--optimizer lion" [muon]="--optimizer muon"
  [fp32]="" [bf16]="--bf16" [fp16]="--fp16 --initial-loss-scale 4096" [keep]="" [recompute]="--activation-checkpointing"
  [whole]="" [cut]="--sequence-parallel"
)

# on "MESH ZERO PRECISION ACTIVATIONS SEQUENCE" CSV FLAGS...: runs the row's architecture; its output is in log.
on() {
  local mesh zero words word given=()
  read -r mesh zero words <<<"$1"
  for word in $arch $optimizer $words; do read -rd '' -a more <<<"${flags[$word]}" || true; given+=("${more[@]}"); done
  train "$mesh,$zero" "$2" "${given[@]}" --global-batch-size "$batch" --micro-batch-size $((batch / ${mesh##*,} / 2)) \
      "${@:3}" >log 2>&1 || fail "$arch on $1: $(tail -5 log)"
}

python=$(python3 -c 'import sys; print(sys.executable)')  # itself: some python3 are slow scripts
gather() { "$python" -I -S "$here/gather.py" "$1" "$2" >gather.log 2>&1; }

# train_source: trains the run that a row loads, unless the previous row did. The run continues unchanged to step 4. For each
# kind of file, gather.py is shown two checkpoints that differ.
train_source() {
  [[ $trained != "$arch $from $optimizer $batch" ]] || return 0
  rm -rf source source.csv
  on "$from" source.csv --train-iters 4 --save source --save-interval 3
  local kind
  kind="$(cut -d' ' -f2-3 <<<"$from") $optimizer"
  if [[ $kinds != *"/$kind/"* ]]; then
    ! gather source/global_step3 source/global_step4 && grep -q '^differs: ' gather.log || fail "gather.py sees no difference between steps 3 and 4"
    kinds+="/$kind/"
  fi
  back_to source global_step3 global_step4
  trained="$arch $from $optimizer $batch"
}

# resume_row ARCH (MESH ZERO PRECISION ACTIVATIONS SEQUENCE) OPTIMIZER (MESH ZERO PRECISION ACTIVATIONS SEQUENCE) WAY BATCH
resume_row() {
  local arch=$1 from="${*:2:5}" optimizer=$7 to="${*:8:5}" way=${13} batch=${14} load=(--load source --universal-checkpoint) tolerance=2e-3
  local row="$arch, $optimizer: $from -> $to, $way"
  train_source
  case $way in
    universal) [[ -e source/latest_universal ]] || convert source global_step3 ;;
    converts) rm -rf source/*_universal ;;
    direct) load=(--load source) ;;
  esac
  rm -rf again resumed.csv
  on "$to" /dev/null --train-iters 3 "${load[@]}" --save again
  [[ $way != converts ]] || grep -q 'converted global_step3 to' log || fail "$row: nothing was converted: $(cat log)"
  "$bin/ckpt" diff source/global_step3 again/global_step3 >diff.log || fail "$row: $(tail -5 diff.log)"
  grep -q ', 0 differences$' diff.log || fail "$row: $(cat diff.log)"
  gather source/global_step3 again/global_step3 || fail "$row: $(tail -5 gather.log)"
  on "$to" resumed.csv --train-iters 4 "${load[@]}"
  [[ $(losses resumed.csv 4 | wc -l) == 1 ]] || fail "$row: it trained $(losses resumed.csv | wc -l) steps"
  [[ $4 != fp32 || ${10} != fp32 ]] || tolerance=1e-6
  close source.csv resumed.csv $tolerance 4 "$row: $(tail -1 gather.log); step 4"
}

python3 "$here/resume_matrix.py" >rows || fail "resume_matrix.py"
mapfile -t rows <rows
# Runs two rows at a time, each in its own folder. Rows that load the same saved run go to the same folder.
rows_of() { # 0 OR 1
  local trained='' key='' kinds='' source=0 row
  mkdir "rows$1" && cd "rows$1"
  for row in "${rows[@]}"; do
    [[ $(cut -d' ' -f1-7 <<<"$row") == "$key" ]] || { key=$(cut -d' ' -f1-7 <<<"$row") source=$((1 - source)); }
    # shellcheck disable=SC2086
    ((source != $1)) || resume_row $row
  done
}
rows_of 1 &
background=$!
(rows_of 0)
wait $background
