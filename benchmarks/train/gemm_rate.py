#!/usr/bin/env python3
"""GFLOP/s of torch.mm of 2048 x 2048 matrices, the median of 15: gemm_rate.py fp32|bf16"""

import sys
import time

import torch

n = 2048
a, b = (torch.randn(n, n, dtype=torch.float32 if sys.argv[1] == "fp32" else torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)
times = []
for _ in range(18):
    started = time.perf_counter()
    torch.mm(a, b, out=out)
    times.append(time.perf_counter() - started)
print(2 * n**3 / sorted(times[3:])[7] / 1e9)
