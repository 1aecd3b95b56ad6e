#!/usr/bin/env bash
# Asynchronous saves. The run and its checkpoints equal those of synchronous saves, byte for byte. A save that is under way when a
# step fails is committed. (The torture test kills runs in the middle of such saves.)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" "$1"
warm_start

model+=(--global-batch-size 4)
for mesh in 1,2,2,1 2,1,2,3 1,1,2,0; do
  for kind in sync async; do
    train "$mesh" $kind.csv --train-iters 24 --save-interval 5 --save-total-limit 2 --save $kind --report-save \
        $([[ $kind == async ]] && echo --async-save) >$kind.log 2>&1 || fail "$(tail -5 $kind.log)"
  done
  same sync.csv async.csv "losses of $mesh with asynchronous saves"
  [[ $(ls async | tr '\n' ' ') == "global_step20 global_step24 latest "* ]] || fail "$mesh: $(ls async)"
  # Only the settings --async-save and --save differ, not the tensors or the state of the run.
  for tag in global_step20 global_step24; do
    "$bin/ckpt" diff "sync/$tag" "async/$tag" >diff.log 2>&1 || fail "$mesh $tag: $(cat diff.log)"
    [[ $(cd sync && find $tag -type f | sort) == $(cd async && find $tag -type f | sort) ]] || fail "$mesh: files differ"
    "$bin/ckpt" verify "async/$tag" >verify.log 2>&1 || fail "$mesh $tag: $(cat verify.log)"
  done
  [[ $(grep -c '^saved async/.* training stood still' async.log) == 5 ]] || fail "$mesh: $(grep saved async.log)"
  [[ $(grep -c '^save times, ms' async.log) == 5 && $(grep -c '^save times, ms' sync.log) == 5 ]] || fail "$mesh: no times"
  train "$mesh" resumed.csv --train-iters 24 --load async --load-tag global_step20 >resumed.log 2>&1 || fail "$(tail -5 resumed.log)"
  same sync.csv resumed.csv "a run of $mesh resumed from one" 21
  echo "ok: checkpoints of $mesh"
  rm -rf sync async
done

# A save that is under way when a step fails is committed.
train 1,1,2,1 nan.csv --train-iters 20 --save-interval 1 --save nan --async-save --lr 1e38 --lr-warmup-iters 0 >nan.log 2>&1 && fail "no NaN"
grep -q 'at iteration' nan.log || fail "$(tail -5 nan.log)"
last=$(tail -1 nan.csv | cut -d, -f1)
[[ $(cat nan/latest) == "global_step$last" ]] || fail "latest is $(cat nan/latest) after $last steps"
echo "ok: the save before a step that failed"
