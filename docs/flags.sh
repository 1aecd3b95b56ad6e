#!/usr/bin/env bash
# Writes the flags of each program to docs/flags.md:    docs/flags.sh [FOLDER_OF_EXECUTABLES] >docs/flags.md
set -euo pipefail
bin=${1:-$(dirname "${BASH_SOURCE[0]}")/../build/release/bin}
printf '# Flags\n\nThis page holds the `--help` output of each program, gathered by `docs/flags.sh`. The test `flags_current` checks that it is current.\n'
for program in pretrain_gpt generate ds_to_universal ds_reshard zero_to_fp32 ckpt hf_convert preprocess_data plot_loss plot_figure report plan; do
  printf '\n## %s\n\n```\n' "$program"
  "$bin/$program" --help | sed 's/[[:space:]]*$//'
  printf '```\n'
done
