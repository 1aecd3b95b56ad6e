#!/usr/bin/env python3
"""The rows of expert_meshes.sh: which mixture of experts is resumed where, covering every pair of values of every two factors.

    expert_meshes.py > rows       always the same: from, to and way; a run is tp,pp,dp,zero,ep[,whole]

A row is a run that saves, one that loads, and the way between them. A run is tp, pp, dp, ZeRO stage, ep, and whether tp leaves
experts whole. Each row is chosen greedily to cover as many pairs of values as it can that no row before it covers; to begin with,
few runs save.
"""
import itertools

WAYS = ("universal", "direct")


def is_run(run):
    tp, pp, dp, zero, ep, experts = run
    return tp * pp * dp <= 8 and (dp * tp if experts == "whole" else dp) % ep == 0 and (experts == "cut" or tp > 1)


RUNS = [run for run in itertools.product((1, 2), (1, 2, 4), (1, 2, 4), (0, 1, 2, 3), (1, 2, 4), ("cut", "whole")) if is_run(run)]


def pairs(row):
    """Each two values of a run, or of two runs and the way, with their places."""
    return set(itertools.combinations(enumerate(row), 2))


def covering(options, parts_of):
    """Options that have every pair together, each chosen for those that none before it has."""
    parts = {option: pairs(parts_of(option)) for option in options}
    missing, chosen = set().union(*parts.values()), []
    while missing:
        chosen.append(max(options, key=lambda option: len(parts[option] & missing)))
        missing -= parts[chosen[-1]]
    return chosen


def main():
    sources = covering(RUNS, lambda run: run)
    rows = covering(list(itertools.product(sources, RUNS, WAYS)), lambda row: (*row[0], *row[1], row[2]))
    name = lambda run: ",".join(map(str, run[:5])) + (",whole" if run[5] == "whole" else "")
    for source, target, way in sorted(rows, key=lambda row: (sources.index(row[0]), row)):
        print(name(source), name(target), way)


if __name__ == "__main__":
    main()
