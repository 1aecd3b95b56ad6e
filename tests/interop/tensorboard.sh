#!/usr/bin/env bash
# Reads --tensorboard-dir with TensorBoard's own reader. One folder has a run and its continuation from the middle on another
# mesh. Installs the same packages as run.sh, once.
#
#   tests/interop/tensorboard.sh [FOLDER_OF_EXECUTABLES]   default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

flags=(--fp16 --lr-decay-iters 100 --train-iters 10 --eval-interval 5 --eval-iters 1 --tensorboard-dir logs)
train 1,2,2,1 loss.csv "${flags[@]}" --save checkpoints --save-interval 6 >first.log 2>&1 || fail "$(tail -5 first.log)"
train 2,1,1,0 loss.csv "${flags[@]}" --load checkpoints --load-tag global_step6 >second.log 2>&1 || fail "$(tail -5 second.log)"
compare 300 tensorboard_scalars.py logs loss.csv first.log second.log
