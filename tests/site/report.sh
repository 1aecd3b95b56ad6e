#!/usr/bin/env bash
# report.sh [FOLDER OF THE EXECUTABLES]: checks reports in headless Chromium (pages.py): one of small runs made for this, one
# of a folder with hostile names, and three that lessons have left in runs/. Without Chromium, CI installs it and others skip
# this test.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
bin=$(realpath -e -- "${1:-"$here/../../build/release/bin"}")
chromium=$("$here/chromium.sh")
[[ -n $chromium ]] || { echo "skipped: no Chromium (apt-get install chromium)"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {
  "$bin/pretrain_gpt" --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 \
      --mock-data --vocab-size 64 --micro-batch-size 1 --global-batch-size 8 --train-iters 20 --lr 3e-3 --eval-iters 0 \
      --log-interval 5 --device cpu --report-memory --report-comm --profile-step 10 "${@:2}" \
      --loss-csv "$work/run/$1.csv" --trace "$work/run/$1.json" >"$work/run/$1.log" 2>&1 ||
    { cat "$work/run/$1.log" >&2; echo "FAIL: the run $1" >&2; exit 1; }
}
mkdir -p "$work/run"
run a-run-with-a-long-name-on-one-rank --local-ranks 1 --save "$work/run/checkpoints" --save-interval 10
run pp2-dp2 --local-ranks 4 --pipeline-model-parallel-size 2 --zero-stage 1
run tp2-sequence --local-ranks 2 --tensor-model-parallel-size 2 --sequence-parallel
run zero3 --local-ranks 2 --zero-stage 3
"$bin/report" --output "$work/run.html" "$work/run"

hostile=$work/"<b>'\"&"
mkdir -p "$hostile"
cp "$work/run/pp2-dp2.csv" "$hostile/<script>alert(1)<script>.csv"
sed 's|"--lr [^"]*"|"--lr <script>alert(1)</script>"|' "$work/run/pp2-dp2.jsonl" >"$hostile/$(printf 'a%.0s' {1..150}).jsonl"
printf 'iteration,lm_loss\n<img src=x onerror=alert(1)>,1\n' >"$hostile/cut.csv"
status=0
"$bin/report" --output "$work/hostile.html" "$hostile" 2>/dev/null || status=$?
((status == 1)) || { echo "FAIL: exit status $status for a folder with a damaged file, expected 1" >&2; exit 1; }

shopt -s nullglob
lessons=("$here"/../../runs/{05,08,11}_*/report.html)
python3 "$here/pages.py" "$chromium" "$work/run.html" "$work/hostile.html" "${lessons[@]}"
