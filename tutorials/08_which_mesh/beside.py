#!/usr/bin/env python3
"""Holds what plan predicts for a mesh against what a run of it measured.

    plan ... --explain MESH --json >plan.json
    pretrain_gpt ... --report-memory --report-comm --loss-csv run.csv
    beside.py plan.json run.csv

Prints a row, planned and measured: MiB at the peak, bytes that the busiest rank of each group sends in a step, ms of a step
(the fastest, without the first two). Fails if a part of memory is 5 % off, or if a group's calls or bytes differ. The time is
only shown: it depends on the machine and its load.
"""
import csv
import json
import pathlib
import sys

MIB, NEAR = 2**20, 0.05
PARTS = {"parameters": "parameters", "gradients": "gradients", "optimizer state": "optimizer state", "everything, peak": "peak"}


def main(plan_path, csv_path):
    mesh = json.loads(pathlib.Path(plan_path).read_text())["meshes"][0]
    record = [json.loads(line) for line in pathlib.Path(csv_path).with_suffix(".jsonl").read_text().splitlines()]
    rows = {event["event"]: event["rows"] for event in record if "rows" in event}
    kept = {row["part"]: row["bytes"] for row in rows["memory"]}
    wrong = []
    for theirs, ours in PARTS.items():
        planned = max(stage["memory"][ours] for stage in mesh["stages"])
        if abs(planned - kept[theirs]) > NEAR * kept[theirs]:
            wrong.append(f"{theirs}: plan has {planned / MIB:.3f} MiB, the run {kept[theirs] / MIB:.3f}")
    measured = {(row["group"], row["verb"]): (row["most_calls"], row["most_bytes"]) for row in rows["communication"]}
    planned = {}
    for stage in mesh["stages"]:
        for sent in stage["traffic"]:
            key = sent["group"], sent["verb"]
            planned[key] = max(planned.get(key, (0, 0)), (sent["calls"], sent["bytes"]))
    wrong += [f"{' '.join(key)}: plan has {planned.get(key)} calls and bytes, the run {measured.get(key)}"
              for key in sorted(planned | measured) if planned.get(key) != measured.get(key)]
    with open(csv_path) as file:
        times = [float(row["elapsed_ms"]) for row in csv.DictReader(file)][2:]
    print("; ".join(wrong) or f"{mesh['mesh']:30} {mesh['memory']['peak'] / MIB:9.2f} {kept['everything, peak'] / MIB:9.2f} "
          f"{sum(sent for _, sent in planned.values()):12} {sum(sent for _, sent in measured.values()):12} "
          f"{1e3 * mesh['step']:9.1f} {min(times):9.1f}")
    return len(wrong) > 0


sys.exit(main(*sys.argv[1:]))
