#!/usr/bin/env bash
# Measures how conversion and loads grow with a checkpoint. sizes.csv varies the bytes: GPT-2 of 10M to 350M parameters, saved
# at ZeRO 1 on dp 2. ranks.csv varies the ranks: 124M parameters, saved at ZeRO 3 on dp 1 to 16, where every rank has a part of
# every tensor. Writes sizes.csv, ranks.csv and growth.svg to the folder OUTPUT and prints the CSVs. Everything is fp32; the
# loads are on 1 rank. Medians of 5 rounds, sources in the page cache. Needs 10 GB of memory and 12 GB of disk.
#
#   ROUNDS=5 RANKS="1 2 4 8 16" benchmarks/growth.sh OUTPUT [FOLDER_OF_EXECUTABLES [SIZE...]]    default: 10M 30M 124M 350M
#
# SIZE may also be 0.76B and 1.3B. These use bf16 and ZeRO 3 with the optimizer state on disk, as they do not fit otherwise (20
# GB of memory and 50 GB of disk). RANKS up to 64 need 150 MB of memory each. A conversion's MiB are its peak. A load's MiB are
# the memory that it adds to the model and its state.
output=$(mkdir -p "${1:?the folder for CSVs and plot}" && cd "$1" && pwd)
shift
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
rounds=${ROUNDS:-5} ranks=${RANKS:-1 2 4 8 16}
columns="GB,files,ds_to_universal s,resharding load s,universal load s,ds_to_universal MiB,resharding load MiB,universal load MiB"

convert() {
  local started
  rm -rf checkpoints/*_universal checkpoints/latest_universal
  sync -f .
  warm checkpoints
  started=$EPOCHREALTIME
  "$bin/ds_to_universal" --input_folder checkpoints/global_step1 --output_folder checkpoints/global_step1_universal >log 2>&1 ||
    { cat log >&2; exit 1; }
  awk -v a="$started" -v b="$EPOCHREALTIME" -v peak="$(sed -n 's/.*peak memory \([0-9]*\) MiB.*/\1/p' log)" \
    'BEGIN {print "convert convert s=" b - a " peak=" peak}' >>measured
}
row() {  # WHAT LAYERS HIDDEN ZERO PRECISION OFFLOAD: measures `checkpoints`
  rm -f measured
  local i
  for ((i = 0; i < rounds; ++i)); do
    convert
    warm checkpoints
    checkpoint_cost load 1 "$2" "$3" 1 1 "${@:4}" universal=checkpoints direct=checkpoints
  done
  awk -v what="$1" -v b="$(du -sb checkpoints/global_step1 | cut -f1)" 'BEGIN {printf "%s,%.3f", what, b / 1e9}'
  printf ',%s' "$(find checkpoints/global_step1 -type f | wc -l)" "$(of convert convert s)" "$(of load direct s)" \
    "$(of load universal s)" "$(of convert convert peak)" "$(of load direct added)" "$(of load universal added)"
  echo
}
sizes() {
  local size model
  echo "parameters,$columns"
  for size in "$@"; do
    case $size in
      10M) model=(2 192 1 fp32 none) ;;
      30M) model=(6 384 1 fp32 none) ;;
      124M) model=(12 768 1 fp32 none) ;;
      350M) model=(24 1024 1 fp32 none) ;;
      0.76B) model=(24 1536 3 bf16 optimizer) ;;
      1.3B) model=(24 2048 3 bf16 optimizer) ;;
      *) echo "growth.sh: $size is none of the sizes" >&2; exit 2 ;;
    esac
    rm -rf checkpoints
    checkpoint_cost save 2 "${model[@]:0:2}" 1 1 "${model[@]:2}" train save=checkpoints
    row "$size" "${model[@]}"
  done
}
of_ranks() {
  local n
  echo "ranks,$columns"
  checkpoint_cost save 1 12 768 1 1 1 fp32 none train save=trained
  for n in $ranks; do
    rm -rf checkpoints
    checkpoint_cost save "$n" 12 768 1 1 3 fp32 none direct=trained save=checkpoints
    row "$n" 12 768 1 fp32 none
  done
}
shift $(($# > 0 ? 1 : 0))
[[ $# -gt 0 ]] || set -- 10M 30M 124M 350M
sizes "$@" | tee "$output/sizes.csv"
of_ranks | tee "$output/ranks.csv"
times="ds_to_universal s|resharding load s|universal load s" memory="ds_to_universal MiB|resharding load MiB|universal load MiB"
"$bin/plot_lines" "$output/growth.svg" "Conversion and loads as checkpoints grow" \
  "Seconds over GB|$output/sizes.csv|GB|$times" "MiB over GB|$output/sizes.csv|GB|$memory" \
  "Seconds over ranks that saved 124M parameters|$output/ranks.csv|ranks|$times" "MiB over ranks|$output/ranks.csv|ranks|$memory"
