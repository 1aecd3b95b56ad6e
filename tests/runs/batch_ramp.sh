#!/usr/bin/env bash
# --rampup-batch-size: batches grow with the samples read, so on any mesh alike, and a run that resumes in the middle of the
# ramp goes on as if it had not stopped.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

flags=${model[*]}
model=(${flags/--lr-warmup-iters 5/})
model+=(--train-samples 100 --rampup-batch-size 4 4 40 --lr-warmup-samples 12)

run 1,1,1,0 one.csv
samples=$(cut -d, -f2 one.csv | tail -n +2 | xargs)
[[ $samples == "4 8 12 16 20 28 36 44 56 68 80 92" ]] || fail "read $samples"  # 4 five times, 8 thrice, then 12
for line in "batches of 4 samples from iteration 1" "batches of 8 samples from iteration 6" "batches of 12 samples from iteration 9"; do
  grep -qF "$line" log || fail "no '$line' in $(cat log)"
done
run 1,5,1,1 other.csv
same one.csv other.csv "a ramp on pp 5"
run 2,1,2,2 other.csv
close one.csv other.csv 1e-5 1 "a ramp on tp 2, dp 2"
run 1,1,2,1 parts.csv --save ckpt --exit-interval 6
run 1,2,4,3 parts.csv --load ckpt
close one.csv parts.csv 1e-5 7 "a ramp, resumed on dp 4"
[[ $(cut -d, -f2 parts.csv | tail -n +2 | xargs) == "$samples" ]] || fail "resumed: $(cut -d, -f2 parts.csv | xargs)"
