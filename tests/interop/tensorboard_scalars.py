#!/usr/bin/env python3
"""TensorBoard's reader on a folder of two runs, the second of which went on from the middle of the first:

    tensorboard_scalars.py FOLDER LOSS_CSV FIRST_LOG SECOND_LOG

Every step is there once, with the values of --loss-csv and of the lines on stdout as floats; exits 1 if not. What the first run
did after the step that the second went on from is forgotten, as it is in the CSV.
"""
import csv
import pathlib
import re
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Scalar: the CSV's column, and the factor for its values.
COLUMNS = {
    "lm loss": ("lm_loss", 1),
    "learning-rate": ("learning_rate", 1),
    "grad-norm": ("grad_norm", 1),
    "loss-scale": ("loss_scale", 1),
    "iteration-time": ("elapsed_ms", 1e-3),
    "tokens/sec": ("tokens_per_s", 1),
}
NEIGHBOUR = 2**-23  # the largest relative distance of two neighbouring floats
VALIDATION = re.compile(r"^validation loss .* iteration (\d+): (\S+) \(perplexity (\S+)\)", re.MULTILINE)


def check(what, got, expected, tolerance=0.0):
    same = len(got) == len(expected) and all(
        g[0] == e[0] and (g[1] == e[1] or abs(g[1] - e[1]) <= tolerance * abs(e[1])) for g, e in zip(got, expected))
    if not same:
        sys.exit(f"FAIL: {what}: TensorBoard has {got}, expected {expected}")


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


folder, table, *logs = sys.argv[1:]
files = sorted(p.name for p in pathlib.Path(folder).iterdir())
if len(files) != len(logs):
    sys.exit(f"FAIL: {folder} has {files}, expected a file per run")
reader = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()
if reader.file_version != 2:
    sys.exit(f"FAIL: file version {reader.file_version}")

with open(table) as rows:
    steps = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(rows)]
if [s["iteration"] for s in steps] != list(range(1, 11)):
    sys.exit(f"FAIL: {table} has other steps than 1 to 10")
scalars = {tag: [(s.step, s.value) for s in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
for tag, (column, factor) in COLUMNS.items():
    # Nine digits identify a float. For a double between two floats, text and event may round to either.
    check(tag, scalars.pop(tag), [(int(s["iteration"]), as_float(s[column] * factor)) for s in steps], NEIGHBOUR)

printed = {}
for log in logs:
    printed |= {int(step): (float(loss), float(ppl)) for step, loss, ppl in VALIDATION.findall(pathlib.Path(log).read_text())}
if sorted(printed) != [5, 10]:
    sys.exit(f"FAIL: validations at {sorted(printed)}, expected 5 and 10")
check("validation", scalars.pop("lm loss validation"), [(s, as_float(v[0])) for s, v in sorted(printed.items())], NEIGHBOUR)
check("perplexity", scalars.pop("lm loss validation ppl"), [(s, v[1]) for s, v in sorted(printed.items())], 1e-5)
if scalars:
    sys.exit(f"FAIL: unexpected scalars {sorted(scalars)}")
print(f"ok: TensorBoard reads {len(COLUMNS)} scalars of {len(steps)} steps and {len(printed)} validations from {len(files)} files")
