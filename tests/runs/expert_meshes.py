#!/usr/bin/env python3
"""The rows of expert_meshes.sh: which mixture of experts is resumed where, covering every pair of values of every two factors.

    expert_meshes.py > rows       always the same: from, to and way; a run is tp,pp,dp,zero,ep[,whole]

A row is a run that saves, one that loads, and the way between them. A run is tp, pp, dp, ZeRO stage, ep, and whether tp leaves
experts whole. To begin with, few runs save.
"""
import itertools

from covering import covering


def is_run(run):
    tp, pp, dp, zero, ep, experts = run
    return tp * pp * dp <= 8 and (dp * tp if experts == "whole" else dp) % ep == 0 and (experts == "cut" or tp > 1)


def name(run):
    return ",".join(map(str, run[:5])) + (",whole" if run[5] == "whole" else "")


def main():
    runs = [run for run in itertools.product((1, 2), (1, 2, 4), (1, 2, 4), (0, 1, 2, 3), (1, 2, 4), ("cut", "whole")) if is_run(run)]
    sources = covering(runs)
    rows = covering([(*source, *run, way) for source in sources for run in runs for way in ("universal", "direct")])
    for *row, way in sorted(rows, key=lambda row: (sources.index(row[:6]), row)):
        print(name(row[:6]), name(row[6:]), way)


if __name__ == "__main__":
    main()
