#!/usr/bin/env bash
# Data parallelism: 2 and 4 ranks share the batch, and the curve stays the same.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
ask 10% "How many bytes does each rank of dp 4 all-reduce in a step, if the model has 218496 parameters in fp32?" \
    'moved dp4 dp all_reduce'
growth() { echo $((100 * $(moved dp4 dp all_reduce) / $(moved dp2 dp all_reduce) - 100)); }
ask 0 "By how many percent do these bytes grow from dp 2 to dp 4?" growth

train 1,1,1,0 one
for dp in 2 4; do
  train 1,1,$dp,0 dp$dp --report-comm
  say "dp $dp: loss $(loss dp$dp 1) at step 1, $(loss dp$dp 60) at step 60"
  close one dp$dp 1e-5 "dp $dp against one process"
done
say "what a step of dp 4 communicates:"
traffic dp4
# Four ranks before and after: a1 is part 1 of rank 0's tensor, and s1 is part 1 of the sum.
awk 'BEGIN {
  split("a b c d", of); verbs = split("all-reduce reduce-scatter all-gather all-to-all", verb)
  for (v = 1; v <= verbs; ++v) {
    print "# " verb[v]
    for (r = 0; r < 4; ++r) {
      before = after = ""
      for (p = 0; p < 4; ++p) {
        before = before " " (v == 3 && p != r ? "." : of[r + 1] p)
        after = after " " (v == 1 || (v == 2 && p == r) ? "s" p : v == 2 ? "." : v == 3 ? of[p + 1] p : of[p + 1] r)
      }
      print "rank " r ":" before " >" after
    }
  }
  for (r = 0; r < 4; ++r) print of[r + 1] " = of rank " r
  print "s = of the sum"}' >"$out/collectives.txt"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/collectives.svg" \
    --title "What four ranks have before and after a collective" "$out/collectives.txt"
quietly "$out/plot.log" "$bin/plot_figure" batch --output "$out/batch.svg" "$out/dp4.log"
