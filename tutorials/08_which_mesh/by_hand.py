#!/usr/bin/env python3
"""Adds up a mesh by hand, beside plan's sum.

    plan ... --explain MESH --json >plan.json && by_hand.py plan.json

The mesh has stages (pp above 1), ZeRO 1 and no recomputation; the model is dense, with a gated MLP, in bf16. Prints each number by
its formula, and fails if one is 5 % and more than 0.1 % of the sum off.
"""
import json
import re
import sys

GIB, NEAR, SMALL = 2**30, 0.05, 0.001


def flag(text, name):
    return float(re.search(rf"--{name} (\S+)", text).group(1))


def sums(plan):
    """Rows of a name, a formula, its value and plan's, in GiB, seconds or %."""
    mesh, command, machine = plan["meshes"][0], plan["command"], plan["machine"]
    L, h, a, s, V = (int(flag(command, name)) for name in
                     ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "vocab-size"))
    t, p, d, m, b = (mesh[key] for key in ("tp", "pp", "dp", "micro_batches", "micro_batch_size"))
    f, e = 8 * h // 3 // 64 * 64, 2  # the width of the MLP, and bytes of bf16
    rate = flag(machine, "tflops") * flag(machine, "efficiency") * 1e12
    memory, nvlink, network = (flag(machine, name) * flag(machine, "link-efficiency") * 1e9
                               for name in ("memory-bandwidth", "nvlink", "network"))
    call = flag(machine, "latency") * 1e-6

    # Memory of a rank of the first stage
    layers, matrices = L / p, 4 * h * h + 3 * h * f
    n = (layers * matrices + V * h) / t
    layer = b * s * (4 * h * e + 16 + (4 * h * e + 3 * f * e + 4 * a) / t)
    in_flight = min(p, m) * (layers * layer + b * s * (h * e + 9))

    # Time of the last stage, which is the slowest: it has the head
    scores = 4 * layers * b * s * s * h / t
    products = 3 * m * (2 * n * b * s + scores) / rate
    gradients = 8 * n * m / memory
    hidden = b * s * h * e
    tp = (4 * layers + 1) * m * (2 * (t - 1) / t * hidden / nvlink + call) if t > 1 else 0
    pp = m * (hidden / (nvlink if t * p * d <= 8 else network) + call)
    dp = 6 * n * (d - 1) / d / (nvlink if t * d <= 8 else network)
    bubble = (p - 1) / m * (products + gradients + tp + pp)
    optimizer = 38 * n / d / memory
    step = products + gradients + tp + pp + dp + bubble + optimizer
    mfu = 6 * m * d * b * s * (L * matrices + V * h + 2 * L * s * h) / (step * t * p * d * flag(machine, "tflops") * 1e12)

    kept, time = mesh["stages"][0]["memory"], mesh["time"]
    return [("parameters", "2 n", "GiB", 2 * n / GIB, kept["parameters"] / GIB),
            ("gradients", "4 n", "GiB", 4 * n / GIB, kept["gradients"] / GIB),
            ("optimizer state", "12 n / d", "GiB", 12 * n / d / GIB, kept["optimizer state"] / GIB),
            ("activations", "min(p, m) (L/p A + E)", "GiB", in_flight / GIB, kept["activations"] / GIB),
            ("sum", "plan: with the rest at the peak", "GiB", (6 * n + 12 * n / d + in_flight) / GIB, kept["peak"] / GIB),
            ("products", "6 m b s (n + 2 L/p s h / t) / R", "s", products, time["products"]),
            ("gradients", "8 n m / M", "s", gradients, time["gradients"]),
            ("tp", "(4 L/p + 1) m 2 (t - 1)/t 2 b s h / N", "s", tp, time["tp"]),
            ("pp", "m 2 b s h / N", "s", pp, time["pp"]),
            ("dp", "6 n (d - 1)/d / N", "s", dp, time["dp"]),
            ("bubble", "(p - 1)/m of products to pp", "s", bubble, time["bubble"]),
            ("optimizer", "38 n / d / M", "s", optimizer, time["optimizer"]),
            ("sum", "", "s", step, mesh["step"]),
            ("MFU", "6 T (n_all + 2 L s h) / (sum x ranks x peak)", "%", 100 * mfu, 100 * mesh["mfu"])]


def main(path):
    with open(path) as file:
        rows = sums(json.load(file))
    sums_of = {unit: theirs for name, _, unit, _, theirs in rows if name in ("sum", "MFU")}
    right = True
    print(f"{'':16} {'formula':45} {'by hand':>9} {'plan':>9}")
    for name, formula, unit, ours, theirs in rows:
        print(f"{name:16} {formula:45} {ours:9.3f} {theirs:9.3f} {unit}")
        right = right and abs(ours - theirs) <= max(NEAR * theirs, SMALL * sums_of[unit])
    return not right


sys.exit(main(sys.argv[1]))
