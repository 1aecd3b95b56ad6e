#!/usr/bin/env bash
# Pipeline parallelism: stages of layers, the micro-batches that move through them, and their order.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"

train 1,1,1,0 one
for pp in 2 4; do
  train 1,$pp,1,0 pp$pp --profile-step 30 --trace "$out/pp$pp.json"
  say "pp $pp: loss $(loss pp$pp 60) at step 60"
  bitwise one pp$pp "pp $pp against one process"
done

train 1,2,1,0 chunks --num-layers-per-virtual-pipeline-stage 1
say "pp 2, in chunks of a layer: loss $(loss chunks 60) at step 60"
bitwise one chunks "pp 2 in chunks of a layer against one process"

# Prints the forwards and backwards of each rank, in the order of the trace.
order() {
  awk -F'"pid":' '
    /"name":"(forward|backward)"/ {line[$2 + 0] = line[$2 + 0] " " (/"name":"forward"/ ? "F" : "B")}
    END {for (r = 0; r in line; ++r) print "stage " r ":" line[r]}' "$1"
}
say "step 30 of pp 4, F a forward and B a backward of one micro-batch:"
order "$out/pp4.json" | tee "$out/order.txt" | tee -a "$out/output.txt"
for ((stage = 0; stage < 4; ++stage)); do  # 3 - stage forwards ahead, then one forward, one backward
  warmup=$((3 - stage)) expected="stage $stage:"
  for ((i = 0; i < warmup; ++i)); do expected+=" F"; done
  for ((i = warmup; i < 8; ++i)); do expected+=" F B"; done
  for ((i = 0; i < warmup; ++i)); do expected+=" B"; done
  grep -qx "$expected" "$out/order.txt" || fail "not 1F1B: expected '$expected'"
done
say "ok: 1F1B: stage s runs 3 - s forwards ahead"

# slots ORDER: prints when each would run, with its micro-batch, if a forward or a backward took one slot and waited only for its
# neighbour's.
slots() {
  awk '
    {for (i = 3; i <= NF; ++i) kind[NR, i - 2] = $i; left += NF - 2}
    END {
      for (t = 1; left > 0 && t < 1000; ++t) for (s = 1; s <= NR; ++s) {
        k = kind[s, done[s] + 1]; micro = count[s, k] + 1; cell = "."
        neighbour = k == "F" ? s - 1 : s + 1
        if (k != "" && (neighbour < 1 || neighbour > NR ||
                        ((neighbour, k, micro) in at && at[neighbour, k, micro] < t))) {
          at[s, k, micro] = t; count[s, k] = micro; ++done[s]; --left; cell = k (micro - 1)}
        line[s] = line[s] " " cell}
      for (s = 1; s <= NR; ++s) print "stage " s - 1 ":" line[s]}' "$1"
}
say "the same in slots of one size, with a dot where a stage waits:"
slots "$out/order.txt" >"$out/numbered.txt"
sed -E 's/([FB])[0-9]+/\1/g' "$out/numbered.txt" | tee "$out/slots.txt" | tee -a "$out/output.txt"
awk '{idle = gsub(/[.]/, "")} idle != 6 || NF + idle - 2 != 22 {bad = 1} END {exit bad || NR != 4}' "$out/slots.txt" ||
  fail "the bubble is not 6 of 22 slots"
say "ok: the bubble is 6 of 22 slots: (pp - 1) / (micro-batches + pp - 1) = 3 / 11"
for ((stage = 0; stage < 4; ++stage)); do echo "stage $stage: F F F F F F F F B B B B B B B B"; done >"$out/gpipe.txt"
say "all forwards first would take as long:"
slots "$out/gpipe.txt" | tee -a "$out/output.txt"
held() { awk '{n = most = 0; for (i = 3; i <= NF; ++i) {n += $i == "F" ? 1 : -1; if (n > most) most = n}; printf " %d", most}' "$1"; }
say "micro-batches that stages 0 to 3 hold at most: 1F1B$(held "$out/order.txt"), all forwards first$(held "$out/gpipe.txt")"
quietly "$out/plot.log" "$bin/plot_figure" pipeline --output "$out/timeline.svg" "$out/pp2.json"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/slots.svg" \
    --title "1F1B: 8 micro-batches, 4 stages (F forward, B backward)" "$out/numbered.txt"
