#!/usr/bin/env bash
# Writes what each program says of its flags, as docs/flags.md:    docs/flags.sh [FOLDER_OF_EXECUTABLES] >docs/flags.md
set -euo pipefail
bin=${1:-$(dirname "${BASH_SOURCE[0]}")/../build/release/bin}
printf '# Flags\n\nWhat `--help` prints, gathered by `docs/flags.sh`; the test `flags_current` sees to it that it is.\n'
for program in pretrain_gpt generate ds_to_universal zero_to_fp32 ckpt hf_convert preprocess_data plot_loss plot_figure; do
  printf '\n## %s\n\n```\n' "$program"
  "$bin/$program" --help | sed 's/[[:space:]]*$//'
  printf '```\n'
done
