#!/usr/bin/env python3
"""GFLOP/s of torch.mm of 2048 x 2048 matrices, the median of 15: gemm_rate.py fp32|bf16 [cpu|cuda]"""

import sys
import time

import torch

n, device = 2048, sys.argv[2] if len(sys.argv) > 2 else "cpu"
a, b = (torch.randn(n, n, dtype=torch.float32 if sys.argv[1] == "fp32" else torch.bfloat16, device=device) for _ in range(2))
out = torch.empty_like(a)
times = []
for _ in range(18):
    started = time.perf_counter()
    torch.mm(a, b, out=out)
    if device == "cuda":
        torch.cuda.synchronize()
    times.append(time.perf_counter() - started)
print(2 * n**3 / sorted(times[3:])[7] / 1e9)
