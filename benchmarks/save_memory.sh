#!/usr/bin/env bash
# Measures the memory that a save adds to a rank: the peak RSS while a GPT-2 of 124M parameters is saved, against the RSS right
# before. Covers every ZeRO stage, with and without offloading, on several meshes. Needs 12 GB of memory and 4 GB of disk.
#
#   benchmarks/save_memory.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

echo "| mesh | ZeRO | precision | offload | checkpoint | RSS before the save, MiB | added at its peak, MiB (limit 16) |"
echo "|---|---|---|---|---|---|---|"
row() {  # RANKS TP PP ZERO PRECISION OFFLOAD
  rm -f measured
  checkpoint_cost mesh "$1" 12 768 "${@:2}" train save=checkpoints
  added=$(of mesh save added)
  printf '| %s | %s | %s | %s | %s | %s | %s |\n' "tp $2, pp $3, dp $(($1 / $2 / $3))" "$4" "$5" "$6" \
    "$(du -sh checkpoints/global_step1 | cut -f1)" "$(of mesh save before)" "$added"
  rm -r checkpoints
  awk -v added="$added" 'BEGIN {exit !(added >= 0 && added <= 16)}' || { echo "beyond the limit"; exit 1; }
}
for zero in 0 1 2 3; do
  for precision in fp32 bf16; do row 1 1 1 $zero $precision none; done
done
for zero in 0 1 2 3; do row 4 2 2 $zero bf16 none; done
for zero in 1 2 3; do row 2 1 1 $zero bf16 none; done
for zero in 1 2 3; do row 1 1 1 $zero bf16 optimizer; done
row 2 1 1 3 bf16 all
