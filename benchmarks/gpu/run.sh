#!/usr/bin/env bash
# Times training steps on a GPU against a plain PyTorch script (eager and torch.compile, both with SDPA), in bf16. Gives
# tokens/s, the share of the GPU's peak (PEAK, GFLOP/s; 989000 is the bf16 peak of an H100 and an H200), and the GPU's peak
# memory. Medians of ROUNDS runs. PEERS chooses among bf16-eager bf16-compile autocast-eager autocast-compile.
#
#   PYTHON=python PEAK=989000 benchmarks/gpu/run.sh [SIZE]...     default: 124M 350M 1.3B; needs the preset `cuda`, and torch for PYTHON
#
# SIZE: 124M (12 layers, hidden 768, seq 1024, batch 16), 350M (24, 1024, 1024, 16), 1.3B (24, 2048, 2048, 4)
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if (($# == 0)); then set -- 124M 350M 1.3B; fi
DEVICE=cuda PRECISIONS=bf16 PEAK=${PEAK:-989000} exec "$repository/benchmarks/train/run.sh" "${BIN:-$repository/build/cuda/bin}" "$@"
