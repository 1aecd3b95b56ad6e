#!/usr/bin/env bash
# Resumes real DeepSpeed, Trainer and accelerate from what ds_reshard writes (see reshard.py). Then trains what lesson 17 shows by
# recorded losses, and compares with them. Installs the same packages as run.sh, once.
#
#   tests/interop/reshard.sh [FOLDER_OF_EXECUTABLES]      default: build/release/bin
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare 900 reshard.py "$bin"
LAUNCHER="${python[*]} $repository/tests/interop/launch.py" \
  with_packages 600 "$repository/tutorials/17_stay_with_deepspeed/run.sh" "$bin"
