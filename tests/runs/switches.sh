#!/usr/bin/env bash
# Other ways than signals (preemption.sh) to stop a run or make it save, and which checkpoints stay.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tags() { (cd "$1" && echo global_step*); }
ends_with() { [[ $(tail -40 "$1") == *"$2"* ]] || fail "expected '$2': $(tail -20 "$1")"; }

train 1,1,2,1 /dev/null --train-iters 30 --save few --save-interval 4 --save-total-limit 2 --save-retain-interval 12 >log || fail "$(tail -5 log)"
[[ $(tags few) == "global_step12 global_step24 global_step28 global_step30" ]] || fail "kept: $(tags few)"
printf iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_ms >cut.csv  # cut off in its first line
train 1,1,2,1 cut.csv --train-iters 40 --lr-decay-iters 30 --load few --save few --save-interval 10 --save-retain-interval 24 >log || fail "$(tail -5 log)"
[[ $(tags few) == "global_step24 global_step40" ]] || fail "kept: $(tags few)"
[[ $(head -1 cut.csv) == iteration,* && $(wc -l <cut.csv) == 11 ]] || fail "a CSV without rows goes on as: $(head -2 cut.csv)"
echo "ok: limits: $(tags few)"

# mpirun.sh says what Open MPI lacks before that starts.
! TMPDIR=$scratch/none "$here/../../tools/mpirun.sh" 2 true 2>log || fail "started without a folder for the session"
ends_with log "$scratch/none cannot be written, and Open MPI keeps its session there"
if unshare -m true 2>/dev/null; then
  ! unshare -m bash -c "mount -t tmpfs -o size=4m tmpfs /dev/shm && '$here/../../tools/mpirun.sh' 2 true" 2>log || fail "started without memory to share"
  ends_with log "/dev/shm has 4 MiB free, and 2 ranks need 10"
fi

touch "$scratch/stop"
train 1,1,2,1 never.csv --train-iters 30 --save never --kill-switch-file "$scratch/stop" >log || fail "$(tail -5 log)"
ends_with log "--kill-switch-file $scratch/stop: stopping before the first step; nothing was written"
[[ ! -e never ]] || fail "a run that did not start saved"
rm stop

train 1,1,2,1 slow.csv --train-iters 100000 --save slow --save-switch-file "$scratch/save" --kill-switch-file "$scratch/stop" --log-interval 1 >log 2>&1 &
job=$!
until grep -q '^iter ' log || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
touch "$scratch/save"
until [[ ! -e $scratch/save && -e slow/latest ]] || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
asked=$(tags slow)
touch "$scratch/stop"
wait $job || fail "status $?: $(tail -5 log)"
ends_with log "--kill-switch-file"
[[ $asked == global_step* && $(tags slow) == *"$(<slow/latest)"* && $(tags slow | wc -w) == 2 ]] || fail "asked for $asked, at the end $(tags slow)"
echo "ok: a save on request, $asked, and one at the end, $(<slow/latest)"

# stop_second: stops rank 1 of $job in a step, which a log without earlier steps tells. Sets second, its process.
stop_second() {
  second=
  until grep -qs '^iter ' log || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
  for process in $(ranks_of $job); do
    if tr '\0' '\n' <"/proc/$process/environ" | grep -q '^OMPI_COMM_WORLD_RANK=1$'; then second=$process; fi
  done
  [[ $second ]] || fail "rank 1 is gone: $(tail -5 log)"
  kill -STOP "$second"
}

# A rank that is stopped in a step: the other rank names it, and the run ends well once it continues.
rm -f "$scratch/stop" log
mpi=yes train 1,1,2,1 /dev/null --train-iters 100000 --save stopped --kill-switch-file "$scratch/stop" --log-interval 1 --distributed-timeout-minutes 0.05 >log 2>&1 &
job=$!
stop_second
until grep -q WARNING log || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
touch "$scratch/stop"
kill -CONT "$second"
wait $job || fail "status $?: $(tail -5 log)"
[[ $(grep -c WARNING log) == 1 ]] || fail "$(grep WARNING log)"
grep -Eq '^WARNING: .rank 0. has waited 3 s in [a-z_]* of [a-z]* for rank 1, and waits on' log || fail "$(grep WARNING log)"
echo "ok: $(grep -o 'WARNING.*rank 1,' log)"
rm "$scratch/stop"

# One that stays stopped: the job ends.
rm log
mpi=yes train 1,1,2,1 /dev/null --train-iters 100000 --log-interval 1 --distributed-timeout-minutes 0.05 >log 2>&1 &
job=$!
stop_second
status=0
timeout 60 tail --pid=$job -f /dev/null || fail "it waits for ever: $(tail -5 log)"
wait $job || status=$?
kill -KILL "$second" 2>/dev/null || true
[[ $status != 0 ]] && grep -Eq '^.rank 0. has waited 18 s in [a-z_]* of [a-z]* for rank 1, and ends the job' log || fail "status $status: $(tail -5 log)"
echo "ok: $(grep -o '.rank 0. has waited 18 s.*the job' log)"

mkdir -p stays/full
train 1,1,1,0 /dev/null --train-iters 8 --save kept --save-switch-file stays >log 2>&1 || fail "a switch that cannot be removed: $(tail -5 log)"
grep -q 'WARNING: --save-switch-file stays: cannot remove it: .*not empty; it is ignored' log || fail "said nothing: $(tail -5 log)"

train 1,1,1,0 /dev/null --train-iters 100000 --save timed --exit-duration-in-mins 0.05 >log || fail "$(tail -5 log)"
ends_with log "--exit-duration-in-mins 0.05"
echo "ok: $(grep -o 'stopping at iteration.*' log), $(<timed/latest)"

# A save fails because its tag's name is taken. The run continues, and the next save succeeds, unless the flag says to stop.
for stop in "" --exit-on-save-failure; do
  rm -rf taken
  mkdir -p taken/global_step2/thesis
  status=0
  train 1,1,2,1 /dev/null --train-iters 3 --lr-decay-iters 100 --save taken --save-interval 1 $stop >log 2>&1 || status=$?
  grep -q 'taken/global_step2/thesis is no file of a checkpoint, and the save would replace taken/global_step2' log || fail "said nothing: $(tail -5 log)"
  if [[ -z $stop ]]; then
    [[ $status == 0 && $(<taken/latest) == global_step3 ]] || fail "status $status, $(<taken/latest): $(tail -5 log)"
    grep -q 'SAVE FAILED' log || fail "$(tail -5 log)"
  else
    [[ $status != 0 && $(<taken/latest) == global_step1 ]] || fail "status $status, $(<taken/latest): $(tail -5 log)"
  fi
  [[ -e taken/global_step2/thesis ]] || fail "the other folder is gone"
done
echo "ok: a save that fails, and one that ends the run"

# The announced sizes are those on disk, to three digits. --dry-run writes nothing.
for mesh in 1,1,2,0 2,2,2,1 1,2,2,3; do
  train $mesh /dev/null --train-iters 2 --lr-decay-iters 100 --save dry --bf16 --dry-run >log || fail "$(tail -5 log)"
  [[ ! -e dry ]] || fail "--dry-run wrote something"
  announced=$(sed -n 's/^each checkpoint: \([0-9.]*\) KB in \([0-9]*\) files.*/\1 \2/p' log)
  train $mesh /dev/null --train-iters 2 --lr-decay-iters 100 --save dry --bf16 >log || fail "$(tail -5 log)"
  actual=$(find dry/global_step2 -type f ! -name manifest.json -exec cat {} + | wc -c)
  files=$(find dry/global_step2 -type f ! -name manifest.json | wc -l)
  rm -r dry
  awk -v a="$announced" -v bytes="$actual" -v files="$files" 'BEGIN {split(a, w); off = w[1] * 1e3 / bytes - 1; exit !(w[2] == files && off * off < 0.006 ^ 2)}' ||
    fail "$mesh: announced '$announced', there are $actual bytes in $files files"
  echo "ok: $mesh: announced $announced, $actual bytes in $files files"
done
