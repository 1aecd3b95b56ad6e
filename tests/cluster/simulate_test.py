#!/usr/bin/env python3
"""The simulation of a cluster (benchmarks/cluster/simulate.py) on traces whose times can be reckoned by hand."""
import json
import pathlib
import subprocess
import sys
import tempfile

SIMULATE = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/cluster/simulate.py"
BF16, FP32 = "c10::BFloat16", "float"


class Trace:
    """Spans one after the other; a phase is around those that are added until the next one."""

    def __init__(self):
        self.events, self.now = [], 0.0

    def add(self, name, *inputs, cat="operator"):
        args = {"Input Dims": [sizes for _, sizes in inputs], "Input type": [dtype for dtype, _ in inputs]} if inputs else {}
        self.events.append({"name": name, "cat": cat, "ph": "X", "ts": self.now, "dur": 1.0, "pid": 0, "tid": 0, "args": args})
        self.now += 2

    def verb(self, name, *inputs):
        self.add(name, *inputs, cat="phase")

    def phase(self, name, fill):
        self.add(name, cat="phase")
        outer = self.events[-1]
        fill()
        outer["dur"] = self.now - outer["ts"]
        self.now += 2


def simulated(trace, mesh, *flags):
    """The times of each column, in ms, with 1 ms for a product of 1e9 operations and for 1e6 bytes of a verb."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder) / "trace.json", pathlib.Path(folder) / "out.json"
        path.write_text(json.dumps({"traceEvents": trace.events}))
        done = subprocess.run([sys.executable, str(SIMULATE), f"{path}:{mesh}", "--tflops", "1", "--memory-gbs", "0", "--nvlink-gbs", "1",
                               "--json", str(out), *flags], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr
        return [round(column["ms"], 6) for column in json.loads(out.read_text())["rows"][0]["columns"].values()]


def ten_events(inside=False):
    """inside: the first product's backward sends its dX itself."""
    trace = Trace()
    x, w, dy = (BF16, [400, 2500]), (BF16, [500, 2500]), (BF16, [400, 500])  # a sequence of 400

    def forward():
        trace.add("anymesh::blocked_linear", x, w)                   # 1 ms
        trace.verb("tp all_reduce", (FP32, [400, 1250]))              # 2, waited for at once
        trace.verb("dp all_gather", (BF16, [2000000]))                # 2, started
        trace.add("anymesh::blocked_linear", x, w)                   # 1
        trace.verb("dp all_gather wait")

    def backward():
        trace.add("anymesh::blocked_linear_backward", dy, x, w)      # dX 1, dW 1
        if inside:
            product = trace.events[-1]
            trace.verb("tp all_reduce", x)
            trace.verb("tp all_reduce wait")
            product["dur"] = trace.now - product["ts"]
        trace.verb("dp reduce_scatter", (BF16, [2000000]))            # 2, or 4 in fp32, started
        if not inside:
            trace.verb("tp all_reduce", x)                            # 2, of dX
        trace.add("anymesh::blocked_linear_backward", dy, x, w)      # 2
        trace.add("aten::view", x)                                    # nothing

    trace.phase("forward", forward)
    trace.phase("backward", backward)
    trace.phase("gradients", lambda: trace.verb("dp all_reduce", (FP32, [10 ** 9])))  # left out
    return trace


def main():
    failed = []

    def expect(what, got, right):
        print(f"{'ok' if got == right else 'FAIL'}: {what}: {got}" + ("" if got == right else f", expected {right}"))
        failed.append(got != right)

    # The forward ends at 5: products 0-1 and 3-4, all-reduce 1-3, all-gather 3-5. Then dX 5-6, dW 6-7 and
    #   one stream      reduce-scatter 7-11, all-reduce 11-13, products 13-15
    #   one per group   reduce-scatter 7-11, all-reduce 7-9, products 9-11
    #   beside dW       all-reduce 6-8, products 8-10, the reduce-scatter ends at 11
    #   bf16            reduce-scatter 7-9, products 8-10
    #   without dp      the forward ends at 4: dX 4-5, dW 5-6, all-reduce 5-7, products 7-9
    #   three streams   as one per group
    flags = ["--layers", "1", "--seq", "400:400"]
    expect("ten events", simulated(ten_events(), "tp=2,dp=2", *flags), [15, 11, 11, 10, 9, 11])
    # An all-reduce inside the product comes before the reduce-scatter: 7-9 and 9-13, or beside dW 6-8 and 8-12, in bf16 8-10.
    expect("an all-reduce inside", simulated(ten_events(True), "tp=2,dp=2", *flags), [13, 13, 12, 10, 9, 12])
    # A launch of 2 ms: products end at 3, 6; dX at 8, dW at 9; reduce-scatter 9-13, all-reduce 9-11, products end at 12, 13.
    expect("launches", simulated(ten_events(), "tp=2,dp=2", *flags, "--launch-us", "2000")[1], 13)
    # Over nodes dp takes ten times as long: the all-gather ends at 3 + 20, dW at 25, the reduce-scatter at 65.
    expect("two nodes", simulated(ten_events(), "tp=2,dp=2", *flags, "--node", "2", "--nic-gbs", "0.1")[1], 65)
    # Twice the sequence doubles products and tp's verbs, and not dp's: products 0-2, 6-8 and 8-12, all-reduce 2-6 and 12-16.
    expect("a longer sequence", simulated(ten_events(), "tp=2,dp=2", "--layers", "1", "--seq", "400:800")[1], 20)

    # A matrix of the vocabulary, 2 * 500 on two ranks, that is twice as large: products 0-2, 4-6, 6-10, 12-16.
    expect("a larger vocabulary", simulated(ten_events(), "tp=2,dp=2", *flags, "--vocab", "1000:2000")[1], 16)
    odd = ten_events()
    odd.phase("backward", lambda: odd.verb("dp all_gather", (BF16, [2])))
    odd.events = [e for e in odd.events if e["name"] != "gradients"]
    expect("a call without its wait", "2 calls of dp all_gather and 1 waits" in simulated(odd, "tp=2,dp=2", *flags), True)

    # A layer is what lies between the first two attentions: a product of 1 ms and an attention of 1 ms in the forward.
    layers = Trace()
    qkv = (BF16, [1, 1000, 10, 3, 25])  # 10 heads of 25: 4 * 1000 * 250 * 1000 operations

    def forward():
        for _ in range(3):
            layers.add("anymesh::blocked_linear", (BF16, [1000, 1000]), (BF16, [500, 1000]))
            layers.add("anymesh::attention", qkv)

    layers.phase("forward", forward)
    expect("32 layers", simulated(layers, "tp=1", "--layers", "32", "--seq", "1000:1000", "--attention-share", "1")[0], 64)
    expect("too many layers", "more than --layers 2" in simulated(layers, "tp=1", "--layers", "2", "--seq", "1000:1000"), True)

    # The third reduction waits for the first where two may run: 4 products of 1 ms, each with a reduction of 2.
    buckets = Trace()

    def backward():
        for _ in range(4):
            buckets.add("anymesh::blocked_linear", (BF16, [1000, 1000]), (BF16, [500, 1000]))
            buckets.verb("dp reduce_scatter", (FP32, [1000000]))

    buckets.phase("backward", backward)  # reductions 1-3, 3-5, 5-7, 7-9
    expect("buckets", simulated(buckets, "dp=2", "--layers", "1", "--seq", "1000:1000"), [9, 9, 9, 9, 4, 9])
    return any(failed)


if __name__ == "__main__":
    sys.exit(main())
