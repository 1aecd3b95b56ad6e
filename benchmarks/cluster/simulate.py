#!/usr/bin/env python3
"""Predicts the forward and backward of a step on a cluster, by a simulation of events over the trainer's own trace of one rank.

  pretrain_gpt --pretend-ranks 64 --pretend-rank 5 ... --num-layers 3 --seq-length 192 --profile-step 2 --trace trace.json
  simulate.py --layers 32 --seq 192:8192 trace.json:tp=2,dp=32,name="8B tp2 dp32" [TRACE:...]...

The trace says which operators run, with the shapes of their tensors, and which verbs are called and waited for, in order. How long
each takes comes from this page's rates, and not from the machine that traced:

  products     2 m n k operations at --tflops; attention 4 s times its output's elements at --attention-tflops, times
               --attention-share (1 counts all pairs, 0.5 the causal half), and 2.5 times that in the backward
  others       the bytes that they read and write at --memory-gbs; those of views and allocations are none
  verbs        factor x bytes / rate + --latency-us: 2 (n - 1) / n for an all-reduce, (n - 1) / n for a reduce-scatter, all-gather
               and all-to-all, 1 for an exchange and a broadcast; --nvlink-gbs in a group within a node of --node ranks, else --nic-gbs
  launches     --launch-us of the host for each operator; the host waits for nothing

A verb runs in a communication stream, after all that was computed when it was called. The computation waits for its end at the
verb's "wait" or, if it was not started ahead, at once. An all-reduce of a product's dX that comes right after the product's backward
can be moved to where dX is done, so that it runs beside dW; one that the product itself starts there is in the trace as such. Reductions of gradients that the backward calls are started; the computation
waits for the oldest when more than --buckets run, and for all of them at the end. Streams:

  one     one for all groups                          group   one for tp, ep and world together, and one each for dp, edp and pp
  kind    one for verbs that are waited for at once, one for started ones, one for pp; a group's calls stay in order

A small trace stands for a large model: what lies between the first two attentions of a forward or backward is one layer, and is
repeated until there are --layers; a dimension that equals the traced sequence becomes the other (--seq FROM:TO). Trace three layers
or more, as the second layer's neighbours must be layers, with a sequence that no other dimension equals. --vocab does the same to the
tables' dimension, divided by tp, to trace in less memory; the dp traffic of the tables then stays that of the traced vocabulary.

Left out: the optimizer and what follows the gradients' reductions; waits for another rank, so a pipeline's bubble; what the
lone rank's transport itself copies.
"""
import argparse
import collections
import json
import math
import sys

# number: of the outermost span around it, as of a forward; inputs: (bytes of an element, sizes) of each tensor; inside: an operator's verbs
Item = collections.namedtuple("Item", "kind name number inputs inside")
WIDTHS = {"double": 8, "long": 8, "int64_t": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "bool": 1,
          "unsigned char": 1, "uint8_t": 1}
FREE = {"aten::" + name for name in
        "view as_strided empty to narrow slice select expand unsqueeze view_as unflatten detach reshape empty_like empty_strided t "
        "transpose flatten squeeze lift_fresh _reshape_alias item _local_scalar_dense is_nonzero alias permute unbind split chunk "
        "set_ resize_ _unsafe_view result_type record_stream _indices _values is_coalesced _nnz sparse_dim".split()}
# How often a kernel of ours passes over the bytes of its first input.
PASSES = {"anymesh::norm": 4, "anymesh::norm_backward": 4, "anymesh::swiglu": 1.5, "anymesh::swiglu_backward": 5, "anymesh::gelu": 2,
          "anymesh::gelu_backward": 3, "anymesh::row_sums": 2, "anymesh::logits_gradient": 2}
PRODUCTS = {"anymesh::blocked_linear", "anymesh::blocked_linear_backward", "aten::mm", "aten::addmm", "aten::bmm"}
ATTENTIONS = {"anymesh::attention": 1, "anymesh::attention_backward": 2.5}
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "exchange": lambda n: 1, "broadcast": lambda n: 1}
COLUMNS = [("as written", dict(streams="one", buckets=2, wire="fp32", beside=False)),
           ("a stream per group", dict(streams="group", buckets=2, wire="fp32", beside=False)),
           ("+ dX's all-reduce beside dW", dict(streams="group", buckets=2, wire="fp32", beside=True)),
           ("+ bf16 on the wire", dict(streams="group", buckets=2, wire="bf16", beside=True)),
           ("no dp traffic", dict(streams="group", buckets=2, wire="bf16", beside=True, without=("dp", "edp"))),
           ("three streams, 8 buckets", dict(streams="kind", buckets=8, wire="fp32", beside=None))]  # None: as the trace has it


def read_trace(path):
    """What costs time in the first rank's forwards and backwards: operators, verbs and waits, in order."""
    spans = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0 and e["cat"] != "kernel"]
    items, around, number, closed = [], [], 0, -1.0  # around: the open spans' ends, outermost first
    for index, e in enumerate(spans):  # in the order in which they began, outer ones first
        while around and around[-1] <= e["ts"]:
            around.pop()
        if not around:
            if e["name"] == "gradients":
                break
            number += 1
        end, name, args = e["ts"] + e["dur"], e["name"], e.get("args", {})
        inside = index + 1 < len(spans) and spans[index + 1]["ts"] < end  # something is inside it
        around.append(end)
        inputs = [(WIDTHS.get(t, 4), s) for t, s in zip(args.get("Input type", []), args.get("Input Dims", []))]
        verb = e["cat"] == "phase" and " " in name
        if e["ts"] < closed:  # inside a span that stands for all of it
            if verb and not name.endswith(" wait") and items[-1].kind == "op":
                items[-1].inside.append((name, inputs))
            continue
        whole = name in PASSES or name in PRODUCTS or name in ATTENTIONS
        if verb or whole or (e["cat"] == "operator" and not inside and name.startswith("aten::") and name not in FREE):
            kind = "op" if not verb else "wait" if name.endswith(" wait") else "verb"
            items.append(Item(kind, name.removesuffix(" wait"), number, inputs, []))
            closed = end
    return items


def repeated(items, layers):
    """The items of a model of so many layers."""
    out = []
    for number in sorted({i.number for i in items}):
        these = [i for i in items if i.number == number]
        at = [k for k, i in enumerate(these) if i.name in ATTENTIONS]
        if len(at) > layers:
            sys.exit(f"simulate.py: the trace has {len(at)} layers, more than --layers {layers}")
        if at:
            if len(at) < 2:
                sys.exit("simulate.py: the trace has one layer; at least 2 are needed, or 3 at ZeRO 3")
            these[at[1] + 1:at[1] + 1] = these[at[0] + 1:at[1] + 1] * (layers - len(at))
        out += these
    return out


def numel(inputs, which=0):
    return math.prod(inputs[which][1]) if len(inputs) > which else 0


class Machine:
    """Durations in seconds of a mesh's operators and verbs."""

    def __init__(self, args, mesh):
        self.args, self.mesh = args, mesh
        self.sizes = {"tp": mesh["tp"], "dp": mesh["dp"], "ep": mesh["ep"], "edp": mesh["dp"] // mesh["ep"], "pp": mesh["pp"]}
        self.world = mesh["tp"] * mesh["dp"] * mesh["pp"]
        self.spans = {"tp": mesh["tp"], "ep": mesh["tp"] * mesh["ep"], "dp": mesh["tp"] * mesh["dp"], "edp": mesh["tp"] * mesh["dp"]}
        self.to = dict([args.seq])  # a traced dimension -> the simulated one
        if mesh["sp"]:
            self.to |= dict([[n // mesh["tp"] for n in args.seq]])
        if args.vocab:
            self.to |= dict([[n // mesh["tp"] for n in args.vocab]])

    def stretched(self, inputs):
        return [(width, [self.to.get(n, n) for n in sizes]) for width, sizes in inputs]

    def verb(self, name, inputs, wire):
        group, verb = name.split()
        n = self.sizes.get(group, self.world)
        if n == 1 or not inputs:
            return 0.0
        payload = sum(math.prod(sizes) * (4 if wire == "fp32" and verb == "reduce_scatter" and width < 4 else width)
                      for width, sizes in inputs)
        rate = self.args.nvlink_gbs if self.spans.get(group, self.world) <= self.args.node else self.args.nic_gbs
        return FACTORS.get(verb, lambda n: (n - 1) / n)(n) * payload / rate / 1e9 + self.args.latency_us / 1e6

    def parts(self, name, inputs):
        """The durations of an operator's parts, which run one after the other: dX and dW of a product's backward, else one."""
        if name in PRODUCTS:
            if name == "anymesh::blocked_linear":
                flops = [2 * numel(inputs) * inputs[1][1][0]]
            elif name == "anymesh::blocked_linear_backward":
                flops = [2 * numel(inputs) * inputs[2][1][1]] * 2
            else:
                flops = [2 * numel(inputs, -2 % len(inputs)) * inputs[-1][1][-1]]
            return [f / self.args.tflops / 1e12 for f in flops]
        if name in ATTENTIONS:
            out = numel(inputs)
            if name == "anymesh::attention":  # of q, k and v: [b, s, groups, heads of a group + 2, d]
                heads = inputs[0][1][-2]
                out = out * (heads - 2) // heads
            pairs = 4 * out * self.args.seq[1] * self.args.attention_share
            return [ATTENTIONS[name] * pairs / (self.args.attention_tflops or self.args.tflops) / 1e12]
        moved = [width * math.prod(sizes) for width, sizes in inputs] or [0]
        if name in PASSES:
            total = PASSES[name] * moved[0]
        elif name in ("aten::copy_", "aten::fill_", "aten::zero_"):
            total = sum(moved)
        else:  # writes as much as its largest input, or its first in place
            total = sum(moved) + (moved[0] if name.endswith("_") else max(moved))
        return [total / self.args.memory_gbs / 1e9 if self.args.memory_gbs else 0.0]


def actions(items, machine, column):
    """("compute", s), ("start", key, verb, s, ahead) and ("wait", key), in the order in which the rank makes them."""
    out, ahead, reductions, key = [], collections.defaultdict(collections.deque), collections.deque(), 0
    without, split = column.get("without", ()), None  # split: where the last dX ends, and the elements of its result
    to_come = collections.Counter(i.name for i in items if i.kind == "wait")
    calls = collections.Counter(i.name for i in items if i.kind == "verb")
    for name in to_come:
        if calls[name] != to_come[name]:
            sys.exit(f"simulate.py: {calls[name]} calls of {name} and {to_come[name]} waits: it is not clear which were started")
    for item in items:
        inputs = machine.stretched(item.inputs)
        if item.kind == "op":
            parts = machine.parts(item.name, inputs)
            computing = [("compute", part) for part in parts]
            for name, payload in item.inside:  # a gather of its input stands before it; what is sent of dX beside or after dW
                key += 1
                start = ("start", key, name, machine.verb(name, machine.stretched(payload), column["wire"]), False)
                at = 0 if name.endswith("all_gather") else 1 if column["beside"] is not False else len(computing)
                computing.insert(at, start)
                computing.insert(at + 1 if at == 0 else len(computing), ("wait", key))
            out += computing
            if len(parts) == 2 and not item.inside:
                split = (len(out) - 1, numel(inputs, 1))
            elif item.name in ATTENTIONS or item.name in PASSES:
                split = None
        elif item.name.split()[0] in without:
            continue
        elif item.kind == "wait":
            out.append(("wait", ahead[item.name].popleft()))
        else:
            group, verb = item.name.split()
            key += 1
            reduction = verb == "reduce_scatter" and group in ("dp", "edp")
            start = ("start", key, item.name, machine.verb(item.name, inputs, column["wire"]), reduction or item.name in to_come)
            if column["beside"] and group == "tp" and split and numel(inputs) == split[1]:
                out.insert(split[0], start)
                split = None
            else:
                out.append(start)
            if reduction:
                reductions.append(key)
                if len(reductions) > column["buckets"]:
                    out.append(("wait", reductions.popleft()))
            elif item.name in to_come:
                ahead[item.name].append(key)
            else:
                out.append(("wait", key))
    return out + [("wait", k) for k in reductions]


def stream_of(name, ahead, streams):
    group = name.split()[0]
    if streams == "one":
        return "communication"
    if streams == "group":
        return group if group in ("dp", "edp", "pp") else "shared"
    return "pp" if group == "pp" else "beside" if ahead else "at once"


def simulate(steps, streams, launch=0.0):
    """Returns the end of the computation, the time in which it ran, and that of each stream, in seconds."""
    host = now = computed = 0.0
    free, last, ends, busy = collections.Counter(), collections.Counter(), {}, collections.Counter()
    for step in steps:
        if step[0] == "compute":
            host += launch
            now = max(now, host) + step[1]
            computed += step[1]
        elif step[0] == "start":
            _, key, name, seconds, ahead = step
            stream, group = stream_of(name, ahead, streams), name.split()[0]
            ends[key] = free[stream] = last[group] = max(free[stream], last[group], now) + seconds
            busy[stream] += seconds
        else:
            now = max(now, ends[step[1]])
    return now, computed, dict(busy)


def mesh_of(text):
    path, _, rest = text.partition(":")
    mesh = dict(tp=1, dp=1, pp=1, ep=1, sp=0, name=path)
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in mesh:
            raise argparse.ArgumentTypeError(f"{key} is none of {', '.join(mesh)}")
        mesh[key] = value if key == "name" else int(value)
    return path, mesh


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=mesh_of, metavar="TRACE:tp=T,dp=D,pp=P,ep=E,sp=0|1,name=NAME")
    parser.add_argument("--layers", type=int, required=True)
    for flag in ("seq", "vocab"):
        parser.add_argument("--" + flag, type=lambda text: [int(n) for n in text.split(":")], required=flag == "seq", metavar="FROM:TO")
    for flag, default in (("tflops", 550), ("attention-tflops", 0), ("attention-share", 0.5), ("memory-gbs", 3600),
                          ("nvlink-gbs", 370), ("nic-gbs", 42), ("latency-us", 0), ("launch-us", 0)):
        parser.add_argument("--" + flag, type=float, default=default)
    parser.add_argument("--node", type=int, default=8)
    parser.add_argument("--json", metavar="FILE", help="writes each cell's time, computation and streams, too")
    args = parser.parse_args()
    rows = []
    for path, mesh in args.traces:
        items = repeated(read_trace(path), args.layers)
        row = {"mesh": mesh["name"], "columns": {}}
        for title, column in COLUMNS:
            end, computed, busy = simulate(actions(items, Machine(args, mesh), column), column["streams"], args.launch_us / 1e6)
            row["columns"][title] = {"ms": 1e3 * end, "computed_ms": 1e3 * computed, "streams_ms": {k: 1e3 * v for k, v in busy.items()}}
        rows.append(row)
    print(f"forward + backward, ms, simulated: layers repeated to {args.layers}, a sequence of {args.seq[0]} stretched to {args.seq[1]}, "
          + (f"a vocabulary of {args.vocab[0]} to {args.vocab[1]} but for dp's traffic, " if args.vocab else "") +
          f"{args.tflops:g} TFLOP/s, memory {args.memory_gbs:g} GB/s, {args.nvlink_gbs:g} GB/s within {args.node} ranks, "
          f"{args.nic_gbs:g} beyond, {args.launch_us:g} us a launch")
    titles = [title for title, _ in COLUMNS]
    print("\n| | " + " | ".join(titles) + " | computation |\n" + "|---" * (len(titles) + 2) + "|")
    for row in rows:
        cells = [f"{row['columns'][t]['ms']:.0f}" for t in titles]
        print(f"| {row['mesh']} | " + " | ".join(cells) + f" | {row['columns'][titles[0]]['computed_ms']:.0f} |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rates": {k: v for k, v in vars(args).items() if k not in ("traces", "json")}, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
