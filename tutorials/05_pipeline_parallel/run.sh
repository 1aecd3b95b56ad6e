#!/usr/bin/env bash
# Pipeline parallelism: stages of layers, the micro-batches that move through them, and their order.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
waits() { awk 'NR == 1 {print gsub(/[.]/, "")}' "$out/slots.txt"; }
ask 0 "In how many slots does each of 4 stages wait, if a forward or a backward of one of 8 micro-batches takes a slot?" waits
ask 0 "How many micro-batches does stage 0 hold at most, in 1F1B?" 'held "$out/order.txt" | cut -d " " -f 2'

train 1,1,1,0 one
for pp in 2 4; do
  train 1,$pp,1,0 pp$pp --profile-step 30 --trace "$out/pp$pp.json"
  say "pp $pp: loss $(loss pp$pp 60) at step 60"
  bitwise one pp$pp "pp $pp against one process"
done

train 1,2,1,0 chunks --num-layers-per-virtual-pipeline-stage 1 --profile-step 30 --trace "$out/chunks.json"
say "pp 2, in chunks of a layer: loss $(loss chunks 60) at step 60"
bitwise one chunks "pp 2 in chunks of a layer against one process"
train 1,4,1,0 zb --pipeline-schedule zb-h1 --profile-step 30 --trace "$out/zb.json"
say "pp 4, zero bubble: loss $(loss zb 60) at step 60"
bitwise one zb "pp 4 with zb-h1 against one process"

# slots TRACE_OR_STEPS [--halves]: when each step would run if all took one slot (slots.py).
slots() { python3 tutorials/05_pipeline_parallel/slots.py "${@:2}" "$1"; }
# shown: prints rows without the micro-batches' numbers.
shown() { sed -E 's/([FBW])[0-9]+/\1/g' | tee -a "$out/output.txt"; }

slots "$out/pp4.json" >"$out/numbered.txt"
say "step 30 of pp 4, F a forward and B a backward of one micro-batch:"
sed 's/ [.]//g' "$out/numbered.txt" | shown | tee "$out/order.txt"
for ((stage = 0; stage < 4; ++stage)); do  # 3 - stage forwards ahead, then one forward, one backward
  warmup=$((3 - stage)) expected="stage $stage:"
  for ((i = 0; i < warmup; ++i)); do expected+=" F"; done
  for ((i = warmup; i < 8; ++i)); do expected+=" F B"; done
  for ((i = 0; i < warmup; ++i)); do expected+=" B"; done
  grep -qx "$expected" "$out/order.txt" || fail "not 1F1B: expected '$expected'"
done
say "ok: 1F1B: stage s runs 3 - s forwards ahead"

say "the same in slots of one size, with a dot where a stage waits:"
shown <"$out/numbered.txt" | tee "$out/slots.txt"
# check_waits FILE IDLE SLOTS: checks that each of four stages waits in so many of so many slots.
check_waits() {
  awk -v idle="$2" -v slots="$3" '{n = gsub(/[.]/, "")} n != idle || NF + n - 2 != slots {bad = 1} END {exit bad || NR != 4}' "$1" ||
    fail "the bubble is not $2 of $3 slots"
}
check_waits "$out/slots.txt" 6 22
say "ok: the bubble is 6 of 22 slots: (pp - 1) / (micro-batches + pp - 1) = 3 / 11"
for ((stage = 0; stage < 4; ++stage)); do echo "stage $stage: F F F F F F F F B B B B B B B B"; done >"$out/gpipe.txt"
say "all forwards first would take as long:"
slots "$out/gpipe.txt" | tee -a "$out/output.txt"
held() { awk '{n = most = 0; for (i = 3; i <= NF; ++i) {n += $i == "F" ? 1 : -1; if (n > most) most = n}; printf " %d", most}' "$1"; }
say "micro-batches that stages 0 to 3 hold at most: 1F1B$(held "$out/order.txt"), all forwards first$(held "$out/gpipe.txt")"

say "1F1B again, with a backward of two slots, B and W:"
slots "$out/pp4.json" --halves >"$out/halves.txt"
shown <"$out/halves.txt"
say "zb-h1 puts W off:"
slots "$out/zb.json" >"$out/zb.txt"
shown <"$out/zb.txt"
check_waits "$out/halves.txt" 9 33
check_waits "$out/zb.txt" 3 27
say "ok: 1F1B waits 3 (pp - 1) of 33 slots, zb-h1 pp - 1 of 27"

quietly "$out/plot.log" "$bin/plot_figure" pipeline --output "$out/timeline.svg" "$out/pp2.json"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/slots.svg" \
    --title "1F1B: 8 micro-batches, 4 stages (F forward, B backward)" "$out/numbered.txt"
# beside OUT TITLE PLAIN OTHER: draws two schedules, one below the other.
beside() {
  { sed 's/^stage/1F1B/' "$3"; sed "s/^stage/$5/" "$4"; } >"$out/beside.txt"
  quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/$1.svg" --title "$2" "$out/beside.txt"
}
beside zero_bubble "Zero bubble: 8 micro-batches, 4 stages (W gradients of weights)" "$out/halves.txt" "$out/zb.txt" zb-h1
slots "$out/pp2.json" | sed -E 's/ ([FB.][0-9]*)/ \1 \1/g' >"$out/pp2.txt"  # a stage has two chunks, so each step takes two slots
slots "$out/chunks.json" >"$out/chunks.txt"
beside interleaved "Interleaved: 8 micro-batches, 2 stages of 2 chunks" "$out/pp2.txt" "$out/chunks.txt" chunks

say "where the ranks of pp 4 spend step 30:"
show "tutorials/$tutorial/trace.py" "$out/pp4.json"
"tutorials/$tutorial/trace.py" "$out/pp4.json" >"$out/trace.txt" ||
  fail "rank 0 waits before its first forward, or another does not"
say "$(cat "$out/trace.txt")" "ok: rank 0 starts without a wait, the others wait for their first forward"
