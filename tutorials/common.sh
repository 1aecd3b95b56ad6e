# Sourced by the tutorials, which set `tutorial` to their name and `steps` to the length of a run. Defines a small GPT, its text,
# and functions that prepare, train and convert. Files go to runs/$tutorial/, made anew each time. Tokens are bytes; a tutorial that
# sets `vocabulary` learns so many tokens from the text.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # as in mpirun.sh; more threads do not speed up small models
corpus=${CORPUS:+$(realpath -e -- "$CORPUS")}
source "$(dirname "${BASH_SOURCE[0]}")/base.sh"

model=(--num-layers 5 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
       --init-method-std 0.1 --attention-dropout 0.1 --hidden-dropout 0.1)
recipe=(--global-batch-size 24 --train-iters "$steps" --lr 6e-3 --min-lr 3e-4 --lr-decay-style cosine
        --lr-warmup-iters 10 --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --seed 1234)
tokenizer=(--tokenizer-type ByteLevelTokenizer)
[[ -z ${vocabulary:-} ]] ||
  tokenizer=(--tokenizer-type GPT2BPETokenizer --vocab-file "$out/vocab.json" --merge-file "$out/merges.txt")
data=(--data-path "$out/text_text_document" "${tokenizer[@]}" --split 90,10,0)
log=(--log-interval 20 --eval-interval 1000 --eval-iters 8)

step() { printf '\n== %s\n' "$*"; }
now() { date +%s; }
# spent WHAT: notes the seconds since the last note, for `times`.
spent() { times+="${times:+, }$1 $(($(now) - noted)) s"; noted=$(now); }
times='' noted=$(now)

write_text() {
  if [[ -n $corpus ]]; then
    cp -- "$corpus" "$out/text.txt"
  else  # "Ge1:1 In the beginning ..." to one verse a line without its number, and a blank line between chapters
    bible -f 'Gen1:1-Rev22:21' | awk '{
      chapter = $1; sub(/:.*/, "", chapter); if (NR > 1 && chapter != last) print ""; last = chapter
      sub(/^[^ ]+ /, ""); print}' >"$out/text.txt"
  fi
}

# A validation set is made of whole documents: paragraphs if there are enough of them, else lines.
tokenize() {
  local unit=paragraph
  (($(grep -c '^[[:space:]]*$' "$out/text.txt" || true) >= 20)) || unit=line
  [[ -z ${vocabulary:-} ]] || python3 tutorials/learn_bpe.py "$out/text.txt" "$vocabulary" "$out"
  "$bin/preprocess_data" --input "$out/text.txt" --documents $unit --output-prefix "$out/text" \
      "${tokenizer[@]}" --append-eod --count-eod | tee "$out/preprocess.log" | sed 's/^/   /'
}

# prepare: does everything before the first run.
prepare() {
  step "Set-up"
  tools/setup.sh ${CMAKE_PREFIX_PATH:+--no-torch}
  [[ $corpus != "$PWD/$out/"* ]] || fail "CORPUS=$CORPUS: $out is about to be made anew; move the text out of it"
  rm -rf "$out"
  mkdir -p "$out"
  spent "set-up"

  step "Build (the first time: a few minutes)"
  quietly "$out/configure.log" cmake --preset release
  cmake --build --preset release --target $(tutorials/programs.sh)
  spent "build"

  step "Text to tokens"
  write_text
  tokenize
  spent "text"
}

# train MESH RUN FLAGS...: MESH is tp,pp,dp,zero. Writes RUN.csv and RUN.log, and shows the step lines.
train() {
  local tp pp dp zero run=$out/$2 start
  IFS=, read -r tp pp dp zero <<<"$1"
  start_of $((tp * pp * dp)) pretrain_gpt
  "${start[@]}" "${model[@]}" "${recipe[@]}" "${data[@]}" "${log[@]}" \
      --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --zero-stage "$zero" \
      --micro-batch-size $((6 / dp)) --loss-csv "$run.csv" "${@:3}" </dev/null 2>&1 | tee "$run.log" |
    sed -un 's/^iter /   iter /p; s/^validation/   validation/p' ||
    { cat "$run.log" >&2; fail "the run on $(name "$1") failed"; }
}

# convert TAG_FOLDER UNIVERSAL_FOLDER
convert() {
  "$bin/ds_to_universal" --input_folder "$1" --output_folder "$2" 2>"$out/convert.err" | sed 's/^/   /' ||
    { cat "$out/convert.err" >&2; fail "the conversion failed"; }
}

# validation_loss RUN: prints the validation loss at the end of RUN.
validation_loss() {
  local loss; loss=$(sed -n 's/^validation loss at the end.*: \([^ ]*\) .*/\1/p' "$out/$1.log")
  [[ -n $loss ]] || fail "no validation loss in $out/$1.log"
  echo "$loss"
}
