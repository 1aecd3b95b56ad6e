#!/usr/bin/env bash
# Checks the user's view. The examples of --help run as they are. The table at the start describes the same model on every mesh.
# A progress bar appears on a terminal, and nowhere else.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mpirun=$here/../../tools/mpirun.sh

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
echo "ok: the examples of --help run"

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

bar=$'\r\[=*> *\] .* steps/s \| ETA [0-9]* s'
run=("$mpirun" 2 "$bin/pretrain_gpt" "${model[@]}" --train-iters 40)
"${run[@]}" >plain.log
! grep -q $'[\r\e]' plain.log || fail "a bar where there is no terminal"
grep -Eq '^iteration +40/40 \| lm loss [0-9.]+ \| lr .* \| grad norm .* tokens/s \| ETA 0 s$' plain.log || fail "$(cat plain.log)"
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
  script -qec "${run[*]}" /dev/null </dev/null >shown.log
  grep -Eq "$bar" shown.log || fail "no bar on a terminal: $(cat -v shown.log)"
  # The lines equal those of the plain run, except for times.
  words() { sed -E 's/\r$//; s/.*\r//; s/\x1b\[K//g; s/ [0-9.]+ (ms|tokens)/ \1/g; s/ETA.*//; /^done/d' "$1"; }
  diff <(words plain.log) <(words shown.log) || fail "lines on a terminal differ"
  echo "ok: a bar on a terminal"
fi
echo "ok: none elsewhere"
