#!/usr/bin/env python3
"""Holds plan's memory and traffic against what pretrain_gpt reports on the meshes of tests/tools/plan_vectors.json.

  plan.py BIN [EVERY]       runs every EVERYth case: up to 8 ranks as threads, more as one rank alone
  plan.py BIN write         writes the file's numbers anew, those of plan
"""
import json
import pathlib
import subprocess
import sys
import tempfile

FILE = pathlib.Path(__file__).parents[1] / "tools/plan_vectors.json"
NEAR = 0.05  # of the kept memory, and of the peak
PARTS = ["parameters", "gradients", "optimizer state", "tied copies", "peak"]


def planned(bin, flags, case):
    command = [f"{bin}/plan", *flags.split(), "--global-batch-size", str(4 * case["gpus"]), "--gpus", str(case["gpus"]),
               "--preset", "cpu", "--json", "--explain", case["mesh"]]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"FAIL: {' '.join(command)}: {run.stderr}")
    return json.loads(run.stdout)["meshes"][0]


def numbers(mesh):
    """Returns what the file has of a mesh: of each kind of stage, the memory and the traffic of a rank."""
    return [{"first": s["first"], "memory": [s["memory"][part] for part in PARTS],
             "traffic": {f"{t['group']} {t['verb']}": [t["calls"], t["bytes"]] for t in s["traffic"]}} for s in mesh["stages"]]


def trained(bin, flags, case, mesh, stage):
    """Returns the trainer's memory of the largest rank, and its traffic as {key: (of rank 0, of the busiest)}."""
    ranks = case["gpus"]
    if ranks > 8:
        how = ["--pretend-ranks", str(ranks), "--pretend-rank", str(stage["first"] * mesh["tp"] * mesh["dp"])]
    else:
        how = ["--local-ranks", str(ranks)] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        command = [f"{bin}/pretrain_gpt", *flags.split(), *mesh["flags"].split(), *how, "--global-batch-size", str(4 * ranks),
                   "--mock-data", "--train-iters", "2", "--lr", "1e-3", "--eval-iters", "0", "--report-memory", "--report-comm",
                   "--loss-csv", f"{folder}/run.csv"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"FAIL: {' '.join(command)}: {run.stdout[-500:]}{run.stderr[-500:]}")
        events = [json.loads(line) for line in open(f"{folder}/run.jsonl")]
    memory = {row["part"]: row["bytes"] for e in events if e["event"] == "memory" for row in e["rows"]}
    traffic = {f"{row['group']} {row['verb']}": ([row["calls"], row["bytes"]], [row["most_calls"], row["most_bytes"]])
               for e in events if e["event"] == "communication" for row in e["rows"]}
    return memory, traffic


def differences(case, stages, memory, traffic, alone):
    """Returns what differs, and the greatest relative error of memory."""
    greatest = [max(s["memory"][i] for s in stages) for i in range(len(PARTS))]
    errors, found = [], []
    for part, ours in zip(PARTS, greatest):
        theirs = memory["everything, peak" if part == "peak" else part]
        errors.append(abs(ours - theirs) / max(theirs, 1) if theirs > 1 << 16 or ours > 1 << 16 else 0)
        if errors[-1] > NEAR:
            found.append(f"{part}: plan {ours}, trainer {theirs}")
    keys = set(traffic).union(*(s["traffic"] for s in stages))
    for key in sorted(keys):
        first, most = traffic.get(key, ([0, 0], [0, 0]))
        of_stages = [s["traffic"].get(key, [0, 0]) for s in stages]
        busiest = [max(each) for each in zip(*of_stages)]
        if first != of_stages[0] or (most != busiest and not alone):
            found.append(f"{key}: plan {of_stages[0]}, {busiest}; trainer {first}, {most}")
    return found, max(errors), errors[-1]


def main(bin, what="1"):
    vectors = json.loads(FILE.read_text())
    failed, worst, worst_peak, checked = 0, 0, 0, 0
    for number, case in enumerate(vectors["cases"]):
        flags = vectors["models"][case["model"]]
        if what != "write" and number % int(what):
            continue
        mesh = planned(bin, flags, case)
        if what == "write":
            case["stages"] = numbers(mesh)
            continue
        alone = case["gpus"] > 8
        stages = [max(case["stages"], key=lambda s: s["memory"][-1])] if alone else case["stages"]
        memory, traffic = trained(bin, flags, case, mesh, stages[0])
        found, error, peak = differences(case, stages, memory, traffic, alone)
        if numbers(mesh) != case["stages"]:
            found.append("plan's numbers are not the file's; see plan.py")
        checked, worst, worst_peak, failed = checked + 1, max(worst, error), max(worst_peak, peak), failed + bool(found)
        if found:
            print(f"FAIL: {case['model']}, {case['gpus']} ranks, {case['mesh']}: {'; '.join(found)}")
    if what == "write":
        lines = ",\n".join(json.dumps(case) for case in vectors["cases"])
        FILE.write_text(f'{{"models": {json.dumps(vectors["models"], indent=1)},\n"cases": [\n{lines}\n]}}\n')
        return 0
    print(f"{'FAIL' if failed else 'ok'}: {checked} meshes, {failed} differ; memory within {100 * worst:.2f} %, "
          f"its peak within {100 * worst_peak:.2f} %; traffic equal")
    return failed > 0


sys.exit(main(*sys.argv[1:]))
