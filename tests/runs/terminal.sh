#!/usr/bin/env bash
# Checks the user's view. The examples of --help run as they are, and a start without flags shows them. The table at the start
# describes the same model on every mesh, and its flags can be pasted. Lines fit in 80 columns. A progress bar and colours appear
# on a terminal, and nowhere else.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mpirun=$here/../../tools/mpirun.sh
export TERM=xterm  # for the terminals that the test makes; the one it runs in may be dumb

help=$("$bin/pretrain_gpt" --help)
first=$(sed -n '/^Examples:/,/local-ranks/{/^ .*--/p}' <<<"$help" | sed '/local-ranks/d' | tr -s ' \n' ' ')
[[ $first == " pretrain_gpt --num-layers "* ]] || fail "--help has no example: $first"
words=${first#* pretrain_gpt }
"$bin/pretrain_gpt" $words >1.log 2>&1 || fail "the example: $(tail -5 1.log)"
line=$(grep "^  pretrain_gpt --local-ranks 8 \.\.\." <<<"$help") || fail "--help has no example of threads"
"$bin/pretrain_gpt" --local-ranks 8 $words ${line#*...} >8.log 2>&1 || fail "'$line': $(tail -5 8.log)"
line=$(grep "^  mpirun -n 6 pretrain_gpt \.\.\." <<<"$help") || fail "--help has no example of processes"
"$mpirun" 6 "$bin/pretrain_gpt" $words ${line#*...} >6.log 2>&1 || fail "'$line': $(tail -5 6.log)"
grep -q 'resharding it to this mesh: iteration 50' 6.log || fail "the last example does not go on: $(cat 6.log)"
! "$bin/pretrain_gpt" >log 2>&1 || fail "a start without flags succeeds"
grep -qF "$(sed -n '/^Examples:/,/--save/p' <<<"$help")" log && grep -q 'Read on: docs/training.md' log || fail "$(cat log)"
echo "ok: the examples of --help run"

# A run of 50 steps prints every fifth, and one of 5 prints all.
[[ $(grep -c '^iter ' 1.log) == 10 ]] || fail "--log-interval: $(cat 1.log)"
"$bin/pretrain_gpt" $words --train-iters 5 >5.log 2>&1 || fail "$(tail -5 5.log)"
[[ $(grep -c '^iter ' 5.log) == 5 ]] || fail "--log-interval of 5 steps: $(cat 5.log)"

# The settings at the start are flags that give the same settings again.
flags=(--bf16 --no-bias-gelu-fusion --attention-dropout 0 --train-iters 2 --dry-run)
"$bin/pretrain_gpt" $words "${flags[@]}" >first.log 2>&1 || fail "$(tail -5 first.log)"
pasted=$(sed -n 's/^  --/--/p' first.log)
grep -qx -- --bf16 <<<"$pasted" && grep -qx -- --no-bias-gelu-fusion <<<"$pasted" || fail "no switches: $(cat first.log)"
eval "\"$bin/pretrain_gpt\" $(tr '\n' ' ' <<<"$pasted")" >again.log 2>&1 || fail "$(tail -5 again.log)"
diff <(sed '/ free$/d' first.log) <(sed '/ free$/d' again.log) || fail "the pasted flags give other settings"
echo "ok: the settings can be pasted"

# The embeddings have 256 + 32 rows. Each layer has 4 h^2 weights of attention, 8 h^2 of MLP, biases and 2 norms. A last norm
# follows.
h=64 count=$(((256 + 32) * h + 2 * (12 * h * h + 13 * h) + 2 * h))
for ranks in 1 8 6; do
  grep -q "^model: $count parameters, " $ranks.log || fail "$ranks ranks: expected $count: $(grep ^model $ranks.log)"
  grep -q "^data: 600 samples of 32 tokens to train on, " $ranks.log || fail "$ranks ranks: $(grep ^data $ranks.log)"
done
# fp32 on one rank keeps 4 + 4 + 8 bytes for each parameter, and 4 for the tied table's second gradient.
mib=$(awk -v n=$count -v tied=$((256 * h)) 'BEGIN {printf "%.1f", (16 * n + 4 * tied) / 2 ^ 20}')
grep -q "^memory kept between steps: $mib MiB on the largest rank: " 1.log || fail "expected $mib MiB: $(grep ^memory 1.log)"
echo "ok: $(grep ^model 8.log)"

bar=$'\r\[=*> *\] .* steps, loss [0-9.]+, [0-9.]+ steps/s, ETA [0-9]+ s'
run=("$mpirun" 2 "$bin/pretrain_gpt" "${model[@]}" --train-iters 40)
"${run[@]}" >plain.log
! grep -q $'[\r\e]' plain.log || fail "a bar or a colour where there is no terminal"
grep -Eq '^iter 40/40  loss [0-9.]+  lr [0-9.e-]+  norm [0-9.]+  [0-9.]+ ms  [0-9.]+k? tok/s  ETA 0 s$' plain.log ||
  fail "$(cat plain.log)"
! grep -E '^done.{77}' plain.log || fail "lines of more than 80 columns"
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
  script -qec "${run[*]}" /dev/null </dev/null >shown.log
  grep -Eq "$bar" shown.log || fail "no bar on a terminal: $(cat -v shown.log)"
  # The lines equal those of the plain run, except for times.
  words() { sed -E 's/\r$//; s/.*\r//; s/\x1b\[[0-9]*[Km]//g; s/ [0-9.]+k? (ms|tok)/ \1/g; s/  ETA .*//; /^done/d' "$1"; }
  diff <(words plain.log) <(words shown.log) || fail "lines on a terminal differ"
  tr '\r' '\n' <shown.log | sed 's/\x1b\[[0-9]*[Km]//g' | grep -E '^(\[|iter).{80}' && fail "a bar of more than 80 columns"
  grep -q $'\e\[32mdone: ' shown.log || fail "no colour on a terminal: $(cat -v shown.log)"
  NO_COLOR=1 script -qec "${run[*]}" /dev/null </dev/null >shown.log
  grep -Eq "$bar" shown.log && ! grep -q $'\e\[[0-9]*m' shown.log || fail "NO_COLOR: $(cat -v shown.log)"
  TERM=dumb script -qec "$bin/pretrain_gpt ${model[*]} --train-iters 40" /dev/null </dev/null >shown.log
  ! grep -q $'\e' shown.log || fail "TERM=dumb: $(cat -v shown.log)"
  ! script -qec "$bin/pretrain_gpt --lr" /dev/null </dev/null >shown.log
  grep -q $'^\e\[31mpretrain_gpt\e\[0m: ' shown.log || fail "an error without colour: $(cat -v shown.log)"
  echo "ok: a bar and colours on a terminal"
fi
echo "ok: none elsewhere"
