#!/usr/bin/env bash
# Two writers start on one output at random moments: two trainings with one --save, two converters, two exporters of either
# kind, and a converter beside a training that removes its source. The output is one writer's alone, bit for bit. A writer that
# fails names the other one. The user's own files beside the output are unchanged.
#
#   ROUNDS=3 SEED=5 tests/torture/writers.sh FOLDER_OF_EXECUTABLES        a long one: ROUNDS=50
source "$(dirname "${BASH_SOURCE[0]}")/../runs/common.sh" "$1"
rounds=${ROUNDS:-3} steps=8
RANDOM=${SEED:-5}

flags=(--lr-decay-iters 1000 --save-interval 1)
seed_of() { [[ $1 == a ]] && echo 1 || echo 2; }
run() { train 1,1,1,1 /dev/null "${flags[@]}" --seed "$(seed_of "$1")" "${@:2}"; }  # run a|b FLAGS...
sums() { (cd "$1" && find . -type f ! -name .anymesh.json | sort | xargs md5sum); }
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }  # MS
for source in a b; do
  run $source --train-iters $steps --save $source >log 2>&1 || fail "$(tail -5 log)"
done

# pair MOST WRITER: runs `WRITER a` and `WRITER b` into ./o, in either order, the second at most MOST ms after the first. Sets
# `winner` to the one whose output ./o should be.
refused=0 one_by_one=0
pair() {
  local most=$1 writer=$2 order=(a b) pids=() failed=() i
  ((RANDOM % 2)) || order=(b a)
  for i in 0 1; do
    "$writer" ${order[i]} >"${order[i]}.log" 2>&1 &
    pids+=($!)
    ((i)) || pause $((RANDOM % most))
  done
  for i in 0 1; do wait "${pids[i]}" || failed+=($i); done
  ((${#failed[@]} < 2)) || fail "$writer: both failed: $(tail -3 a.log b.log)"
  if ((${#failed[@]} == 0)); then
    winner=${order[1]}
    ((one_by_one += 1))
    return
  fi
  winner=${order[1 - failed[0]]}
  ((refused += 1))
  # A trainer is one of mpirun's processes.
  local process=${pids[1 - failed[0]]}
  [[ $writer != trainer ]] || process='[0-9]+'
  grep -Eq "is being written by [a-z0-9_]+, process $process on $(hostname) since 20" "${order[failed[0]]}.log" ||
    fail "$writer: the other's process is not named: $(tail -3 "${order[failed[0]]}.log"); it was $process"
}
said() { echo "ok: $1: $rounds rounds, $refused refused by name, $one_by_one one after the other"; refused=0 one_by_one=0; }

beside=()
trainer() { run "$1" --train-iters $steps --save o "${beside[@]}"; }
for ((i = 0; i < rounds; ++i)); do
  rm -rf o && mkdir o && echo thesis >o/thesis.txt
  beside=() && ((i % 2)) || beside=(--async-save)
  pair 1500 trainer
  [[ $(ls -A o | tr '\n' ' ') == "$(cd o && echo global_step{1..8} latest thesis.txt zero_to_fp32.py) " ]] || fail "left: $(ls -A o)"
  [[ $(<o/latest) == global_step$steps && $(<o/thesis.txt) == thesis ]] || fail "latest: $(<o/latest), $(<o/thesis.txt)"
  for ((step = 1; step <= steps; ++step)); do
    "$bin/ckpt" verify o/global_step$step >log 2>&1 || fail "$(cat log)"
    "$bin/ckpt" diff $winner/global_step$step o/global_step$step >log 2>&1 || fail "step $step is not $winner's: $(cat log)"
  done
done
said "two trainings on one --save"

# tools NAME WRITER: the output must equal the one WRITER makes alone.
tools() {
  local source i
  rm -rf o
  for source in a b; do
    ("$2" $source) >log 2>&1 || fail "$2: $(cat log)"
    sums o >"$source.sums"
    rm -rf o
  done
  ! cmp -s a.sums b.sums || fail "$2: the two outputs are equal"
  for ((i = 0; i < rounds; ++i)); do
    echo thesis >o.txt
    ((i % 3)) || rm -rf o  # else it is replaced
    pair 60 "$2"
    sums o | cmp -s - "$winner.sums" || fail "$2: the output is not $winner's alone: $(diff <(sums o) $winner.sums)"
    [[ $(<o.txt) == thesis && -z $(find . -maxdepth 1 -name 'o.*' ! -name o.txt -o -maxdepth 1 -name '.o*') ]] || fail "left: $(ls -A)"
  done
  rm -rf o
  said "$1"
}
converter() { exec "$bin/ds_to_universal" --input_folder "$1/global_step$steps" --output_folder o; }
fp32() { exec "$bin/zero_to_fp32" "$1" o --max_shard_size 100KB; }
hf() { exec "$bin/hf_convert" export "$1" o --max-shard-size 100KB; }
tools "two converters" converter
tools "two zero_to_fp32" fp32
tools "two hf_convert export" hf

# The newest tag is removed during its conversion. The result is that tag's, or an error and no output.
run a --train-iters 100000 --save r --save-total-limit 1 --kill-switch-file stop >train.log 2>&1 &
job=$!
until [[ -e r/latest ]]; do kill -0 $job || fail "$(tail -5 train.log)"; sleep 0.02; done
mkdir -p u r/global_step0 && echo thesis >r/global_step0/thesis.txt
bad=0 last=0 tags=()
for ((i = 0; i < rounds; ++i)); do
  pause $((RANDOM % 100))
  tag=$(<r/latest)
  pause $((RANDOM % 20))
  if "$bin/ds_to_universal" --input_folder "r/$tag" --output_folder u/$i >log 2>&1; then
    tags[i]=$tag
    ((${tag#global_step} <= last)) || last=${tag#global_step}
  else
    ((bad += 1))
    grep -q 'ds_to_universal: .*r/' log && [[ ! -e u/$i ]] || fail "no error for $tag: $(cat log); $(ls u)"
  fi
done
touch stop
wait $job || fail "$(tail -5 train.log)"
[[ $(<r/global_step0/thesis.txt) == thesis ]] || fail "the user's folder is gone"
grep -q 'WARNING: cannot remove r/global_step0: r/global_step0/thesis.txt is no file of a checkpoint' train.log || fail "$(tail -5 train.log)"
((last == 0)) || run a --train-iters "$last" --save whole >log 2>&1 || fail "$(tail -5 log)"
for i in "${!tags[@]}"; do
  "$bin/ckpt" diff "whole/${tags[i]}" u/$i >log 2>&1 || fail "${tags[i]}, whose source went: $(cat log)"
done
echo "ok: a converter beside --save-total-limit: $rounds rounds, ${#tags[@]} whole, $bad refused"
