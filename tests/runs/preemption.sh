#!/usr/bin/env bash
# Stops a run again and again at random moments (start-up, step, evaluation, save) and restarts it with the same command. It
# ends like the run that was left alone, bit for bit. The ranks are processes and threads by turns. Half of the signals are
# SIGTERM to the ranks. The others are SIGUSR1 to mpirun, which passes it on, or to the process of the threads.
#
#   STOPS=20 SEED=7 tests/runs/preemption.sh FOLDER_OF_EXECUTABLES
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" "$1"
stops=${STOPS:-20}
RANDOM=${SEED:-7}

flags=(--num-layers 3 --global-batch-size 4 --train-iters $((100 * stops)) --lr-decay-iters 400 --eval-interval 10 --eval-iters 6
       --save-interval 7 --save-total-limit 2 --log-interval 1)  # the end is never reached
validations() { grep -ho 'validation loss at iteration.*' "$@" | sort -u; }

signal() {  # signals the run whose mpirun, or whose one process, is process $1
  if ((RANDOM % 2)); then kill -USR1 "$1"; elif [[ $mpi ]]; then pkill -TERM -P "$1"; else kill -TERM "$1"; fi 2>/dev/null || true  # or it has ended
}
stopped=0 early=0 last=0
for ((i = 1; stopped < stops; ++i)); do
  ((i < 200)) || fail "$stopped stops in $i starts"
  mpi=
  ((i % 2)) || mpi=yes
  train 1,2,2,1 parts.csv "${flags[@]}" --load parts --save parts >"part$i.log" 2>&1 &
  job=$!
  if ((i % 4)); then  # wait for the first iteration; else stop during start-up
    until grep -qs '^iter ' "part$i.log" || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
  else
    sleep "0.$((RANDOM % 10))"
  fi
  process=$(process_of "$job")
  before=$(cat parts/latest 2>/dev/null || echo none)
  signal "$process"
  if ((i % 4 == 0)); then  # an mpirun that has no ranks yet has nobody to pass the signal on to; a rank obeys after one step
    until (($(grep -cs '^iter ' "part$i.log") > 2)) || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    signal "$process"
  fi
  status=0
  wait "$job" || status=$?
  step=$(grep -c '^iter ' "part$i.log" || true)
  now=$(cat parts/latest 2>/dev/null || echo none)
  if ((step == 0)); then  # before the first step: committed checkpoints stay
    [[ $now == "$before" ]] || fail "start $i: no step, but latest went from $before to $now: $(cat "part$i.log")"
    ((early += 1))
  else
    ((status == 0)) || fail "start $i: exit status $status after $step steps: $(tail -5 "part$i.log")"
    [[ $now == global_step$(($(wc -l <parts.csv) - 1)) ]] || fail "start $i: latest is $now: $(tail -5 "part$i.log")"
    grep -q 'stopping at iteration' "part$i.log" || fail "start $i: no stop: $(tail -5 "part$i.log")"
  fi
  ((stopped += 1))
done
iterations=$(wc -l <parts.csv) mpi=
((iterations += 15))  # with a save and an evaluation more
flags+=(--exit-interval $iterations)
train 1,2,2,1 parts.csv "${flags[@]}" --load parts --save parts >"part$i.log" 2>&1 || fail "$(tail -5 "part$i.log")"
train 1,2,2,1 whole.csv "${flags[@]}" --save whole >whole.log 2>&1 || fail "$(tail -5 whole.log)"
same whole.csv parts.csv "stopped $stopped times in $iterations iterations, $early of them before the first step"
comm -23 <(validations part*.log) <(validations whole.log) >other.log
[[ ! -s other.log ]] || fail "validation losses that the whole run does not have: $(cat other.log)"
((stopped > early + stops / 4)) || fail "only $((stopped - early)) stops came after a first step"
