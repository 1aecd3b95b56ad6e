#!/usr/bin/env bash
# ZeRO: four data parallel ranks at stages 0 to 3. Shows the memory of each, and that the curve stays the same.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
ask 2% "How many bytes of optimizer state does each of 4 ranks keep for a parameter at ZeRO 1, in fp32?" \
    'per_parameter zero1 "optimizer state"'
ask 2% "How many bytes does it keep for a parameter in all at ZeRO 2?" 'per_parameter zero2 parameters gradients "optimizer state"'

row() { say "$(printf '%-6s %11s %10s %10s %16s' "$@")"; }
echo "ZeRO,parameters,gradients,optimizer state" >"$out/memory.csv"
for zero in 0 1 2 3; do train 1,1,4,$zero zero$zero --report-memory; done
row "ZeRO" parameters gradients optimizer "loss at step 60"
for zero in 0 1 2 3; do
  run=zero$zero
  parts=("$(memory $run parameters)" "$(memory $run gradients)" "$(memory $run 'optimizer state')")
  row $zero "${parts[@]}" "$(loss $run 60)"
  echo "$zero,${parts[0]},${parts[1]},${parts[2]}" >>"$out/memory.csv"
done
say "(MiB a rank, of four)"
bitwise zero0 zero1 "ZeRO 1 against 0"
bitwise zero2 zero3 "ZeRO 3 against 2"
close zero0 zero2 1e-6 "ZeRO 2 against 0"
quarter() {  # RUN PART: checks that RUN keeps a quarter of stage 0's PART, to 2 %
  awk -v whole="$(memory zero0 "$2")" -v part="$(memory "$1" "$2")" \
      'BEGIN {d = 4 * part / whole - 1; exit !(d < 0.02 && d > -0.02)}' || fail "$1 does not keep a quarter of the $2"
}
quarter zero1 'optimizer state'
quarter zero3 parameters
say "ok: a quarter of the optimizer state at ZeRO 1, of the parameters at ZeRO 3"
quietly "$out/plot.log" "$bin/plot_figure" bars --output "$out/memory.svg" --title "What each of four ranks keeps, MiB" "$out/memory.csv"
quietly "$out/plot.log" "$bin/plot_figure" zero --output "$out/zero.svg" "$out/zero2.log"
