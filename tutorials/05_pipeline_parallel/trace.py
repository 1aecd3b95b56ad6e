#!/usr/bin/env python3
"""Reads a trace of pretrain_gpt --trace as text: trace.py TRACE.json

Prints for each rank the ms of its phases, and of its waits for a neighbour: before its first forward, before its first backward,
and later. A phase inside another counts for the outer one. Fails unless rank 0 starts without a wait and all others with one.
"""
import json
import sys

WAIT = "pp exchange wait"


def phases_of(path):
    """The outer phases of each rank, by begin."""
    ranks = {}
    with open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "phase"]
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        outer = ranks.setdefault(event["pid"], [])
        if not outer or event["ts"] >= outer[-1]["ts"] + outer[-1]["dur"]:
            outer.append(event)
    return ranks


def row_of(outer):
    """ms of forward, backward, the three kinds of wait, all else."""
    sums = dict.fromkeys(["forward", "backward", "before F0", "before B0", "later", "other"], 0)
    begun = {event["name"]: event["ts"] for event in reversed(outer)}  # the first of each name
    for event in outer:
        name = event["name"]
        if name == WAIT:
            name = "before F0" if event["ts"] < begun["forward"] else "before B0" if event["ts"] < begun["backward"] else "later"
        sums[name if name in sums else "other"] += event["dur"] / 1e3
    return sums


def main(path):
    ranks = phases_of(path)
    right = True
    for rank, outer in sorted(ranks.items()):
        sums = row_of(outer)
        if rank == 0:
            print(f"{'ms':7}" + "".join(f"{name:>11}" for name in sums))
        print(f"rank {rank:2}" + "".join(f"{ms:11.2f}" for ms in sums.values()))
        right = right and (sums["before F0"] > 0) == (rank > 0)
    return not right


sys.exit(main(sys.argv[1]))
