#!/usr/bin/env bash
# generate continues a text that its model has learned by heart. It writes the same text from the checkpoint of any mesh, a
# universal folder and weights, with and without a cache. It refuses impossible requests.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

line='Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. '
for _ in {1..200}; do printf '%s' "$line"; done >text.txt
"$bin/preprocess_data" --input text.txt --output-prefix text --tokenizer-type ByteLevelTokenizer >log 2>&1 || fail "$(cat log)"
gpt=(--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 50 --max-position-embeddings 96)
run=(--data-path text_text_document --split 100,0,0 --attention-dropout 0 --hidden-dropout 0 --init-method-std 0.1 --lr 1e-2 --min-lr 1e-4
     --lr-decay-style cosine --lr-warmup-iters 10 --adam-beta2 0.95 --micro-batch-size 4 --global-batch-size 16 --eval-iters 0 --log-interval 20)
mesh=(--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --zero-stage 1 --bf16)
launch 4 "${gpt[@]}" "${run[@]}" "${mesh[@]}" --train-iters 120 --save c >train.log 2>&1 ||
  fail "$(tail -5 train.log)"
convert c global_step120
"$bin/zero_to_fp32" c weights >log 2>&1 || fail "$(cat log)"

# text FILE FLAGS...: writes generate's output to FILE.
text() { "$bin/generate" "${@:2}" >"$1" 2>log || fail "generate ${*:2}: $(cat log)"; }

# refused STATUS PATTERN FLAGS...: prints one message on stderr, and nothing on stdout.
refused() {
  local status=0
  "$bin/generate" "${@:3}" >out 2>log || status=$?
  [[ $status == "$1" && ! -s out && $(grep -c '^generate: ' log) == 1 ]] && grep -qE -- "$2" log || fail "generate ${*:3}: $status, $(cat out log)"
  echo "ok: refused: $(head -1 log | cut -c1-150)"
}

greedy=(--prompts 'Zwölf Box' 'Sylter ' --num-tokens-to-generate 36 --temperature 0)
text expected --load c "${greedy[@]}"
printf '%s\n' 'Zwölf Boxkämpfer jagen Viktor quer über den' 'Sylter Deich. Zwölf Boxkämpfer jagen Vikt' | cmp - expected ||
  fail "not the text that was learned: $(tail -3 train.log)$(cat expected)"
echo "ok: $(head -1 expected)"
same_text() { cmp "$1" "$2" || fail "$3: $(cat "$2") differs from $(cat "$1")"; echo "ok: $3: the same text"; }
from() { text found "${@:2}"; same_text expected found "$1"; }
from "the tag folder" --load c/global_step120 "${greedy[@]}"
from "--load-tag" --load c --load-tag global_step120 "${greedy[@]}"
from "the universal folder" --load c/global_step120_universal "${greedy[@]}"
from "weights, with the model's flags" --load weights --tokenizer-type ByteLevelTokenizer "${gpt[@]}" "${greedy[@]}"
from "without a cache" --load c --recompute "${greedy[@]}"

drawn=(--prompts Zw --num-tokens-to-generate 60 --temperature 1.5)
text first --load c "${drawn[@]}" --seed 1
text found --load c/global_step120_universal "${drawn[@]}" --seed 1 --recompute
same_text first found "drawn with one seed"
text found --load c "${drawn[@]}" --seed 2
! cmp -s first found || fail "another seed draws the same text: $(cat found)"
text found --load c "${drawn[@]}" --top_k 1
text expected --load c --prompts Zw --num-tokens-to-generate 60 --temperature 0
same_text expected found "--top_k 1"
text found --load c "${drawn[@]}" --top_p 1e-9
same_text expected found "--top_p 1e-9"
text found --load c --num-tokens-to-generate 90 --temperature 50
iconv -f utf-8 -t utf-8 found >/dev/null || fail "not UTF-8: $(od -c found)"
LC_ALL=C grep -q $'\xef\xbf\xbd' found || fail "no byte of 90 random ones was out of place: $(od -c found)"
echo "ok: random bytes are printed as UTF-8"

# Several prompts of any length at once: each text is the same as alone.
several=('Zw' 'Sylter Deich. Zwölf' 'V' 'Viktor')
alike() {
  for prompt in "${several[@]}"; do text one "$@" --prompts "$prompt"; cat one; done >expected
  text found "$@" --prompts "${several[@]}"
  same_text expected found "four prompts at once, ${*:3}"
}
alike --load c --num-tokens-to-generate 40 --temperature 1.2
text found --load c --num-tokens-to-generate 40 --temperature 1.2 --recompute --prompts "${several[@]}"
same_text expected found "four prompts at once, without a cache"
alike --load c --num-tokens-to-generate 70 --temperature 50 --seed 1

# A SentencePiece model. The text of a piece depends on those before it, and the texts end at different steps.
pieces=(--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "$here/../fixtures/data/sentencepiece.model")
for _ in {1..200}; do echo 'The quick brown fox jumps over Zwölf lazy dogs.'; done >pieces.txt
"$bin/preprocess_data" --input pieces.txt --output-prefix pieces --documents line --prepend-bos --append-eod "${pieces[@]}" >log 2>&1 || fail "$(cat log)"
launch 1 "${gpt[@]}" "${run[@]/text_text/pieces_text}" "${pieces[@]}" --train-iters 60 --save p >train.log 2>&1 ||
  fail "$(tail -5 train.log)"
text found --load p --prompts 'The quick' 'The quick brown fox jumps over Zw' --temperature 0 --num-tokens-to-generate 60
printf 'The quick brown fox jumps over Zwölf lazy dogs.\n%.0s' 1 2 | cmp - found || fail "not the line that was learned: $(cat found)"
echo "ok: SentencePiece: $(head -1 found)"

# Documents there begin with <s>. A text without a prompt does too, and one with a prompt on request.
learned='The quick brown fox jumps over Zwölf lazy dogs.'
text found --load p --temperature 0 --num-tokens-to-generate 60
[[ $(cat found) == "${learned:0:20}"* ]] && grep -q 'note: the text begins behind <s>' log || fail "from <s>: $(cat found log)"
text found --load p --prompts 'The quick' --prepend-bos --temperature 0 --num-tokens-to-generate 60
[[ $(cat found) == "${learned:0:20}"* ]] && ! grep -q 'note:.*<s>' log || fail "--prepend-bos: $(cat found log)"
text found --load p --prompts 'The quick' --temperature 0
grep -q 'note: prompts are not given the <s>.*--prepend-bos' log || fail "no note: $(cat log)"
text found --load c --prompts 'Zw' --prepend-bos --temperature 0
! grep -q 'note:' log || fail "notes: $(cat log)"
echo "ok: <s> begins a text, and a prompt if asked for"

# A run's files with relative paths are found from another folder, and beside the checkpoint.
mkdir -p here/data elsewhere/deep
cp "${pieces[3]}" here/data/some.model
(cd here && "${trainer[@]}" "${gpt[@]}" --data-path ../pieces_text_document "${run[@]:2}" "${pieces[@]:0:3}" data/some.model --train-iters 1 \
    --lr-warmup-iters=0 --save 'my c' >../train.log 2>&1) || fail "$(tail -5 train.log)"
some() {
  (cd elsewhere/deep && text "$scratch/found" --load "$1" --prompts x --num-tokens-to-generate 1 && grep -q -- "$2" log) || fail "$1: $(cat elsewhere/deep/log)"
  echo "ok: from another folder: $(grep -o -- '--tokenizer-type.*' elsewhere/deep/log)"
}
some "$scratch/here/my c" "note: found by the checkpoint: --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model .*/here/data/some.model"
mv 'here/my c' moved
refused 1 'data/some.model: cannot open: .*(--tokenizer-model)' --load moved --prompts x
cp here/data/some.model moved/
some ../../moved "--tokenizer-model .*/moved/some.model"
mv moved 'moved too'
some "../../moved too" "--tokenizer-model '/.*/moved too/some.model'"

# After an import the tokenizer's files lie beside it.
{ "$bin/hf_convert" export c theirs && "$bin/hf_convert" import theirs imported; } >log 2>&1 || fail "$(cat log)"
refused 1 'does not say which tokenizer it is of, nor is there a tokenizer.model' --load imported --prompts Zw
cp "$here/../fixtures/data/v257.json" theirs/vocab.json && echo '#version: 0.2' >theirs/merges.txt
"$bin/hf_convert" import theirs 'my import' >log 2>&1 || fail "$(cat log)"
tail -1 log | grep -q -- "--load 'my import' --universal-checkpoint --finetune" || fail "not quoted: $(cat log)"
some '../../my import' "--tokenizer-type GPT2BPETokenizer --vocab-file '/.*/my import/vocab.json' --merge-file '/.*/my import/merges.txt'"
echo '{"normalizer": {"type": "NFC"}}' >'my import/tokenizer.json'
refused 1 'my import/tokenizer.json says that this tokenizer does not split text as .*its normalizer is ."type":"NFC".' --load 'my import' --tokenizer-type GPT2BPETokenizer

# A model may have more tokens than its tokenizer (padding). Training continues with them, and generate never draws one.
wide() { "${trainer[@]}" "${gpt[@]}" "${run[@]}" --lr-warmup-iters=0 --lr-decay-iters 9 --save w "$@" >train.log 2>&1; }
wide --tokenizer-type NullTokenizer --vocab-size 300 --train-iters 1 || fail "$(tail -5 train.log)"
wide --tokenizer-type ByteLevelTokenizer --load w --train-iters 2 || fail "$(tail -5 train.log)"
grep -q 'note: .* vocabulary of the checkpoint has 300 entries, the tokenizer 257' train.log || fail "no note: $(cat train.log)"
text found --load w --num-tokens-to-generate 90 --temperature 50 --seed 3
grep -q 'note: .* has 257 tokens, the model of .* 300; those without a text' log || fail "no note: $(cat log)"
echo "ok: a model of 300 tokens with a tokenizer of 257"
! wide --tokenizer-type ByteLevelTokenizer --load w/global_step2 --train-iters 3 || fail "loaded a tag folder"
grep -q -- "is the folder of one tag; give --load $scratch/w --load-tag global_step2" train.log || fail "$(cat train.log)"
! wide --tokenizer-type NullTokenizer --vocab-size 301 --load w --train-iters 3 || fail "trained with 301 of 300 tokens"

# Computed positions reach beyond the training's length. Without a tokenizer, tokens are numbers.
for positions in --position-embedding-type\ alibi --use-rotary-position-embeddings; do
  train 1,1,1,0 /dev/null --train-iters 1 --lr-warmup-iters=0 $positions --save n >train.log 2>&1 || fail "$(tail -5 train.log)"
  text numbers --load n --prompts '1 2 3' --num-tokens-to-generate 30 --temperature 0 --window 40
  grep -q 'note: texts of up to 33 tokens; the model was trained on 16' log || fail "$(cat log)"
  [[ $(wc -w <numbers) == 33 && $(cut -d' ' -f1-3 numbers) == '1 2 3' ]] || fail "$(cat numbers)"
  text found --load n --prompts '1 2 3' --num-tokens-to-generate 30 --temperature 0 --window 40 --recompute
  same_text numbers found "${positions#--}, beyond the training's length"
  rm -r n
done

# A text longer than the window, here 16 tokens with learned positions and 6 with rotary ones: each token is the one that follows
# the tokens of the window alone, which begins at a multiple of its half. A prompt may be longer than the window too. Prompts given
# at once have the texts that they have alone, as above.
windows() {
  local kind=$1 window=$2 length start numbers
  train 1,1,1,0 /dev/null --train-iters 1 --lr-warmup-iters=0 --init-method-std 0.5 "${@:3}" --save n >train.log 2>&1 ||
    fail "$(tail -5 train.log)"
  text long --load n --window "$window" --prompts '1 2 3' --num-tokens-to-generate 40 --temperature 0
  grep -q "note: texts of up to 43 tokens, where the model reads $window at a time" log || fail "$(cat log)"
  text found --load n --window "$window" --prompts '1 2 3' --num-tokens-to-generate 40 --temperature 0 --recompute
  same_text long found "$kind, a window of $window"
  read -ra numbers <long
  [[ ${#numbers[@]} == 43 && $(printf '%s\n' "${numbers[@]:3}" | sort -u | wc -l) -gt 1 ]] || fail "$(cat long)"
  local prompts=()
  for ((length = window + 1, start = window / 2; length < 43; ++length)); do
    ((length - start <= window)) || ((start += window / 2))
    prompts+=("${numbers[*]:start:length-start}")
  done
  text next --load n --prompts "${prompts[@]}" --num-tokens-to-generate 1 --temperature 0
  [[ $(awk '{print $NF}' next | xargs) == "${numbers[*]:window + 1}" ]] ||
    fail "$kind: tokens ${numbers[*]:window + 1}, the windows' $(awk '{print $NF}' next | xargs)"
  text found --load n --window "$window" --prompts "${numbers[*]:0:30}" --num-tokens-to-generate 13 --temperature 0
  same_text long found "$kind, a prompt longer than the window"
}
windows "learned positions" 16
refused 1 "--window .17.: the model has a learned vector for each of 16 positions .--max-position-embeddings., and none beyond" \
    --load n --window 17 --prompts '1 2 3'
rm -r n
windows "rotary positions" 6 --use-rotary-position-embeddings
rm -r n

# Threads: one for a small model, all for a large one, or as many as the environment says.
threads() {
  "${@:2}" "$bin/generate" --load "$load" --prompts Zw --num-tokens-to-generate 2 >out 2>log || fail "$(cat log)"
  grep -q "threads: $1\$" log || fail "$load, ${*:2}: expected $1 threads: $(cat log)"
}
large=(--num-layers 1 --hidden-size 1024 --micro-batch-size 1 --global-batch-size 1)
"${trainer[@]}" "${gpt[@]}" "${run[@]}" "${large[@]}" --train-iters 1 --lr-warmup-iters=0 --save large >train.log 2>&1 || fail "$(tail -5 train.log)"
load=c threads 1 env -u OMP_NUM_THREADS
load=large threads "$(env -u OMP_NUM_THREADS nproc)" env -u OMP_NUM_THREADS
for load in c large; do
  for set in 1 2; do threads $set env OMP_NUM_THREADS=$set; done
done
rm -r large
echo "ok: threads by the size of the model"

refused 2 '--load is required'
grep -q '^  generate --load checkpoints --prompts ' log || fail "no example: $(cat log)"
"$bin/generate" --help >out
grep -q -- '--window N' out && ! grep -q -- '--num-layers' out || fail "--help: $(cat out)"
refused 2 "--window .0. must be at least 1" --load c --window 0
refused 2 "unknown flag --prompt; did you mean --prompts" --load c --prompt x
refused 2 "--top_k x: expected an integer" --load c --top_k x
refused 2 "--temperature 0 takes the likeliest" --load c --temperature 0 --top_k 3
refused 2 "--num-tokens-to-generate .0. must be at least 1" --load c --num-tokens-to-generate 0
refused 1 "c/global_step9: no such file or folder; .* holds: .*global_step120" --load c --load-tag global_step9
refused 1 "nowhere: no such file or folder" --load nowhere
refused 1 "--window .97.: the model has a learned vector for each of 96 positions" --load c --prompts Zw --window 97
refused 1 "--num-layers: .* has the model's flags itself" --load c --num-layers 2
refused 1 "NullTokenizer takes numbers below its vocabulary's 257" --load c --tokenizer-type NullTokenizer --prompts '1 300'
refused 1 "--prompts is needed" --load c --tokenizer-type NullTokenizer
refused 1 "needs --vocab-file and --merge-file" --load c --tokenizer-type GPT2BPETokenizer
bpe=$here/../fixtures/data/bpe
refused 1 "--tokenizer-type GPT2BPETokenizer has [0-9]* tokens, the model of .* 257" --load c --tokenizer-type GPT2BPETokenizer \
    --vocab-file "$bpe/vocab.json" --merge-file "$bpe/merges.txt"
refused 1 "SentencePiece: expected ByteLevelTokenizer, GPT2BPETokenizer, SentencePieceTokenizer" --load c --tokenizer-type SentencePiece
refused 1 "takes --tokenizer-model" --load c --tokenizer-type SentencePieceTokenizer
refused 1 "has no args.*--num-layers .0. is required" --load weights --tokenizer-type ByteLevelTokenizer
refused 1 "word_embeddings.weight is .257, 32., expected .vocabulary, 64." --load weights --tokenizer-type ByteLevelTokenizer \
    "${gpt[@]}" --hidden-size 64
refused 1 "does not say which tokenizer" --load weights "${gpt[@]}"
refused 1 "the checkpoint has no parameter .*word_embeddings.norm.weight" --load weights --tokenizer-type ByteLevelTokenizer \
    "${gpt[@]}" --embed-layernorm
refused 1 "has tied_modules.embed.position_embeddings.weight, which such a model does not have" --load weights \
    --tokenizer-type ByteLevelTokenizer "${gpt[@]}" --use-rotary-position-embeddings
