#!/usr/bin/env bash
# Tensor parallelism: 2 and 4 ranks share every layer, and the curve stays the same, with --sequence-parallel too.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
calls() { awk '/^tp +all_reduce/ {print $3 / 8}' "$out/tp2.log"; }
ask 0 "How many all-reduces does a micro-batch take on tp 2, with 5 of them for embedding, logits and loss?" calls
share() { awk -v part="$(memory tp2 parameters)" -v all="$(memory one parameters)" 'BEGIN {printf "%.1f", 100 * part / all}'; }
ask 2 "How many percent of the parameters does a rank of tp 2 keep?" share

train 1,1,1,0 one --report-memory
say "tp 1: parameters $(memory one parameters) MiB"
for tp in 2 4; do
  train $tp,1,1,0 tp$tp --report-memory --report-comm
  say "tp $tp: parameters $(memory tp$tp parameters) MiB a rank, loss $(loss tp$tp 60) at step 60"
  close one tp$tp 1e-5 "tp $tp against one process"
done
train 2,1,1,0 sequence --sequence-parallel --report-memory --report-comm
close one sequence 1e-5 "tp 2 with --sequence-parallel against one process"
for run in tp2 sequence; do
  say "what a step of $run communicates:"
  traffic $run
done
quietly "$out/plot.log" "$bin/plot_figure" tensor --output "$out/tensor.svg" "$out/tp2.log"
