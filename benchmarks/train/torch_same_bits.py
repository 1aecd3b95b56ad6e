#!/usr/bin/env python3
"""What the same bits at any tensor-parallel size cost in plain PyTorch if weights are gathered and products are whole, as in
Megatron-LM's draft 4740. Two ranks, tp 2, train the layers of a GPT-2 in fp32 over gloo.

    torch_same_bits.py LAYERS HIDDEN HEADS SEQ BATCH STEPS ROUNDS

A column-parallel layer gathers its weight and dy for the gradient of its input, a row-parallel one its weight and input for its
output: every rank computes the whole product. The plain way sums the ranks' products. Both take turns. Prints the medians of the
steps' ms, forward and backward, and their ratio.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 2


def gathered(x, dim):
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


def summed(x):
    dist.all_reduce(x)
    return x


class Column(torch.autograd.Function):  # x [b, s, h] w^T, w [n/t, h]
    @staticmethod
    def forward(ctx, x, w, whole):
        ctx.save_for_backward(x, w)
        ctx.whole = whole
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = gathered(dy, -1) @ gathered(w, 0) if ctx.whole else summed(dy @ w)
        return dx, dy.flatten(0, 1).t() @ x.flatten(0, 1), None


class Row(torch.autograd.Function):  # x [b, s, k/t] w^T, w [h, k/t]
    @staticmethod
    def forward(ctx, x, w, whole):
        ctx.save_for_backward(x, w)
        return gathered(x, -1) @ gathered(w, 1).t() if whole else summed(x @ w.t())

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ w, dy.flatten(0, 1).t() @ x.flatten(0, 1), None


def layer(x, weights, heads, whole):
    qkv, dense, up, down = weights
    b, s, h = x.shape
    q, k, v = Column.apply(F.layer_norm(x, (h,)), qkv, whole).view(b, s, heads // RANKS, -1).transpose(1, 2).chunk(3, -1)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, h // RANKS)
    x = x + Row.apply(mixed, dense, whole)
    return x + Row.apply(F.gelu(Column.apply(F.layer_norm(x, (h,)), up, whole), approximate='tanh'), down, whole)


def work(rank, layers, hidden, heads, seq, batch, steps, rounds):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29517')
    dist.init_process_group('gloo', rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    sizes = [(3 * hidden // RANKS, hidden), (hidden, hidden // RANKS), (4 * hidden // RANKS, hidden), (hidden, 4 * hidden // RANKS)]
    weights = [[torch.randn(size).mul_(0.02).requires_grad_() for size in sizes] for _ in range(layers)]
    torch.manual_seed(7)
    data = torch.randn(batch, seq, hidden)
    times = {False: [], True: []}
    for turn in range(2 * rounds):
        whole = turn % 2 == 1
        taken = []
        for _ in range(steps):
            dist.barrier()
            started = time.perf_counter()
            x = data.clone().requires_grad_()
            for each in weights:
                x = layer(x, each, heads, whole)
            x.square().mean().backward()
            taken.append(1e3 * (time.perf_counter() - started))
            for each in weights:
                for weight in each:
                    weight.grad = None
        times[whole].append(statistics.median(taken[1:]))
    if rank == 0:
        plain, same = statistics.median(times[False]), statistics.median(times[True])
        print(f'{plain:.1f} {same:.1f} {same / plain:.2f}')
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(work, tuple(map(int, sys.argv[1:])), RANKS)
