#!/usr/bin/env bash
# Kills a run with kill -9 in the middle of a save, then damages a byte. The run resumes from the newest good checkpoint, bit
# for bit.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
resumed_after() { sed -n 's/.*loaded .*: iteration \([0-9]*\).*/\1/p' "$out/resumed.log"; }
ask 0 "After which step does the run go on, if it saves every 20 steps and is killed in the save of step 40?" resumed_after
ask 0 "How many of the 60 steps does the same command run, when the checkpoint of step 60 is damaged?" \
    'sed 1d "$out/after.csv" | wc -l'
checkpoints=$out/checkpoints
wide=(--hidden-size 256 --global-batch-size 2)  # a save long enough for a kill, and short steps
saves=("${wide[@]}" --save "$checkpoints" --load "$checkpoints" --save-interval 20 --report-save)

train 1,1,2,1 whole "${wide[@]}"

# A save writes to a folder *.tmp. In rare cases it ends before the kill arrives; then the loop tries again.
for attempt in 1 2 3 4 5 6 7 8; do
  rm -rf "$checkpoints"
  mpi=yes command_of 1,1,2,1 killed "${saves[@]}"
  (launch) >"$out/killed.log" 2>&1 &
  job=$!
  until [[ -e $checkpoints/latest ]] || ! kill -0 $job 2>/dev/null; do sleep 0.02; done   # the save of step 20
  until compgen -G "$checkpoints/*step40*.tmp" >/dev/null || ! kill -0 $job 2>/dev/null; do :; done
  ranks=$(pgrep -P $job -x pretrain_gpt || true)
  [[ -z $ranks ]] || kill -9 $ranks 2>/dev/null || true
  ! wait $job || fail "the run ended before it was killed"
  [[ $(cat "$checkpoints/latest") == global_step40 ]] || break
done
[[ $(cat "$checkpoints/latest") == global_step20 ]] ||
  fail "no kill came in the middle of a save; latest is $(cat "$checkpoints/latest")"
say "# while \$out/checkpoints/global_step40.tmp exists: pkill -KILL pretrain_gpt" \
    "killed in the save of step 40; latest says $(cat "$checkpoints/latest")"
train 1,1,2,1 resumed "${saves[@]}"
quietly "$out/plot.log" "$bin/plot_figure" save --output "$out/save.svg" "$out/resumed.log"
say "the same command: $(grep -o 'loaded .*: iteration [0-9]*' "$out/resumed.log")"
bitwise whole resumed "after the kill, against the run that nothing happened to"

damaged=$checkpoints/global_step60/zero_pp_rank_1_mp_rank_00_optim_states.pt
at=$(($(stat -c %s "$damaged") / 2))
byte=$(od -An -tu1 -j $at -N 1 "$damaged")
printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$damaged" bs=1 seek=$at conv=notrunc status=none
say "changed one bit of byte $at of global_step60/$(basename "$damaged")"
show "$bin/ckpt" verify "$checkpoints/global_step60"
! "$bin/ckpt" verify "$checkpoints/global_step60" >"$out/verify.log" 2>&1 || fail "ckpt verify finds nothing"
say "ckpt verify: ${damaged##*/}$(sed -n "s|^$damaged\(: record .*\)|\1|p" "$out/verify.log")"
train 1,1,2,1 after "${saves[@]}"
grep -q '^WARNING: global_step60 is damaged' "$out/after.log" || fail "no warning in $out/after.log"
say "the same command: $(grep -o 'FALLING BACK to global_step[0-9]*' "$out/after.log")"
bitwise whole after "after the damage, against the run that nothing happened to"
quietly "$out/verify.log" "$bin/ckpt" verify "$checkpoints/global_step60"
say "ckpt verify: global_step60, saved again: $(grep -o 'no problem' "$out/verify.log")"
