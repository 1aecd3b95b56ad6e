#!/usr/bin/env bash
# Training steps on a GPU beside a plain PyTorch script (eager and torch.compile, both with SDPA), in bf16: tokens/s, the share of the
# peak of the GPU (PEAK, GFLOP/s; 989000 is an H100's and H200's in bf16), and what the GPU holds at most. Medians of ROUNDS runs.
# Written without a GPU at hand: it has yet to run once.
#
#   PYTHON=python PEAK=989000 benchmarks/gpu/run.sh [SIZE]...     default: 124M 350M 1.3B; needs the preset `cuda`, and torch for PYTHON
#
# SIZE: 124M (12 layers, hidden 768, seq 1024, batch 16), 350M (24, 1024, 1024, 16), 1.3B (24, 2048, 2048, 4)
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if (($# == 0)); then set -- 124M 350M 1.3B; fi
DEVICE=cuda PRECISIONS=bf16 PEAK=${PEAK:-989000} exec "$repository/benchmarks/train/run.sh" "$repository/build/cuda/bin" "$@"
