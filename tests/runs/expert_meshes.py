#!/usr/bin/env python3
"""The rows of expert_meshes.sh: which mixture of experts is resumed where, covering every pair of values of every two factors.

    expert_meshes.py > expert_meshes.txt         the rows, always the same
    expert_meshes.py --check expert_meshes.txt   are these the rows, and is every pair covered?

A row is a run that saves, one that loads, and the way between them. A run is tp, pp, dp, ZeRO stage, ep, and whether tp leaves
experts whole. Each row is chosen greedily to cover as many pairs of values as it can that no row before it covers; to begin with,
few runs save.
"""
import itertools
import sys

FACTORS = ("tp", "pp", "dp", "zero", "ep", "experts")
WAYS = ("universal", "direct")


def is_run(run):
    tp, pp, dp, zero, ep, experts = run
    return tp * pp * dp <= 8 and (dp * tp if experts == "whole" else dp) % ep == 0 and (experts == "cut" or tp > 1)


RUNS = [run for run in itertools.product((1, 2), (1, 2, 4), (1, 2, 4), (0, 1, 2, 3), (1, 2, 4), ("cut", "whole")) if is_run(run)]


def values(source, target, way):
    return [("from " + f, v) for f, v in zip(FACTORS, source)] + [("to " + f, v) for f, v in zip(FACTORS, target)] + [("way", way)]


def pairs(row):
    return set(itertools.combinations(values(*row), 2))


def of_run(run, side=""):
    return set(itertools.combinations([(side + f, v) for f, v in zip(FACTORS, run)], 2))


def all_pairs():
    """Those within a run that can be, and every two values of two runs, or of a run and the way."""
    sides = {side: sorted({(side + f, run[i]) for run in RUNS for i, f in enumerate(FACTORS)}, key=str) for side in ("from ", "to ")}
    ways = [("way", way) for way in WAYS]
    return set().union(*(of_run(run, side) for run in RUNS for side in sides), itertools.product(sides["from "], sides["to "]),
                       *(itertools.product(side, ways) for side in sides.values()))


def generate():
    sources, missing = [], set().union(*map(of_run, RUNS))
    while missing:
        sources.append(max(RUNS, key=lambda run: len(of_run(run) & missing)))
        missing -= of_run(sources[-1])
    options = {row: pairs(row) for row in itertools.product(sources, RUNS, WAYS)}
    missing, rows = all_pairs(), []
    while missing:
        rows.append(max(options, key=lambda row: len(options[row] & missing)))
        missing -= options[rows[-1]]
    return sorted(rows, key=lambda row: (sources.index(row[0]), row))


def text_of(rows):
    name = lambda run: ",".join(map(str, run[:5])) + (",whole" if run[5] == "whole" else "")
    return "# from to way; a run is tp,pp,dp,zero,ep[,whole]\n" + "".join(f"{name(a)} {name(b)} {way}\n" for a, b, way in rows)


if __name__ == "__main__":
    text = text_of(generate())
    if sys.argv[1:2] != ["--check"]:
        sys.stdout.write(text)
    else:
        rows = generate()
        print(f"{len(rows)} rows from {len({row[0] for row in rows})} saved runs cover "
              f"{len(all_pairs())} pairs")
        sys.exit(open(sys.argv[2], encoding="ascii").read() != text)
