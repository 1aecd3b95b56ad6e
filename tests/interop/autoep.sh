#!/usr/bin/env bash
# Moves mixtures of experts between pretrain_gpt and real DeepSpeed's AutoEP, both ways and with other numbers of ranks that
# share the experts, and reads checkpoints of DeepSpeed's older MoE (see autoep.py). Installs the same packages as run.sh, once.
#
#   tests/interop/autoep.sh [FOLDER_OF_EXECUTABLES]       default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare 900 autoep.py "$bin"
