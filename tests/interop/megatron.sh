#!/usr/bin/env bash
# Trains a GPT by real Megatron-DeepSpeed on CPU, and resumes it on other meshes from what ds_reshard and ds_to_universal write
# (see megatron_deepspeed.py). Installs the same packages as run.sh, once, and fetches Megatron-DeepSpeed into the venv. Skipped
# without a way to GitHub.
#
#   tests/interop/megatron.sh [FOLDER_OF_EXECUTABLES]              default: build/release/bin
#   ANYMESH_MEGATRON_DEEPSPEED=/path tests/interop/megatron.sh     a work tree of that commit, in place of GitHub
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

commit=$(sed -n 's/^set(ANYMESH_MEGATRON_DEEPSPEED_COMMIT \(.*\))$/\1/p' "$repository/cmake/versions.cmake")
sources=${ANYMESH_MEGATRON_DEEPSPEED:-$venv/Megatron-DeepSpeed-$commit}
if [[ ! -e $sources ]]; then
  git init --quiet fetched
  timeout 300 git -C fetched fetch --quiet --depth 1 https://github.com/deepspeedai/Megatron-DeepSpeed "$commit" || {
    echo "SKIPPED: Megatron-DeepSpeed cannot be fetched from GitHub (git's message is above)"
    exit 0
  }
  git -C fetched checkout --quiet FETCH_HEAD
  mv fetched "$sources"
fi

compare 900 megatron_deepspeed.py "$bin" "$sources"
