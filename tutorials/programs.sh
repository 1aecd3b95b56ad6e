#!/usr/bin/env bash
# Prints the programs that the quickstart builds, or with --lessons also those that a lesson needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
{
  printf '%s\n' ds_to_universal generate plot_loss preprocess_data pretrain_gpt report
  [[ ${1:-} != --lessons ]] || sed -n 's/^needs //p' lesson.sh [0-9][0-9]_*/run.sh | tr ' ' '\n'
} | sort -u
