#!/usr/bin/env bash
# Continues a run of pretrain_gpt.sh on another mesh:
#
#   DATA=corpus_text_document RANKS=6 TP=1 PP=2 ZERO=1 examples/change_mesh.sh [flags of the first run]
#
# Reads the checkpoints in CKPT and writes to CKPT_NEW. The mesh, the ZeRO stage, the micro-batch size and the precision may
# change. The model, the global batch and the learning-rate schedule must stay those of the run; a difference is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
CKPT=${CKPT:-runs/example}
CKPT_NEW=${CKPT_NEW:-$CKPT-resumed}

tag=$(<"$CKPT/latest")
build/release/bin/ds_to_universal --input_folder "$CKPT/$tag" --output_folder "$CKPT/${tag}_universal"
CKPT=$CKPT_NEW exec examples/pretrain_gpt.sh --load "$CKPT" --universal-checkpoint "$@"
