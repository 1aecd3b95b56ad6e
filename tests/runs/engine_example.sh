# Runs examples/engine.cpp on two meshes in turn. Each resumes where the last one stopped, with its client state.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" "$1"

run() { "$here/../../tools/mpirun.sh" "$1" "$bin/engine_example" "${@:2}" >run.log 2>&1 || fail "$(cat run.log)"; }
loss() { sed -n 's/^epoch 1 step 40 loss //p' run.log; }

run 1 control
run 1 control
control=$(loss)
run 4 checkpoints --tp 2
run 3 checkpoints
awk -v a="$control" -v b="$(loss)" 'BEGIN {exit !(a > 0 && b > 0 && (a - b) / a < 1e-3 && (b - a) / a < 1e-3)}' ||
  fail "loss at step 40 is '$(loss)', in one process '$control'"
echo "ok: loss at step 40: $(loss) after tp 2 x dp 2 and dp 3, $control in one process"
