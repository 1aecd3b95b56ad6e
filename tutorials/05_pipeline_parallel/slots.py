#!/usr/bin/env python3
"""slots.py [--halves] TRACE|STEPS: prints when each step of a pipeline would run if all took one slot.

TRACE is a file of pretrain_gpt --trace. STEPS has the steps in words instead, as this prints them: "stage 0: F F B B". A row is a
stage, a cell is a step with its micro-batch, and a dot is a slot in which the stage waits. F is a forward, B a backward, W the
gradients of weights. f and b are those of a stage's second chunk. A step waits for the one before it on its stage, and for its
neighbour's result. With --halves a backward takes two slots, B and W, and only then gives its result.
"""
import collections
import json
import sys

LETTERS = {"forward": "Ff", "backward": "Bb", "weights": "W"}


def steps_of_trace(text):
    """Returns the steps of each rank, in order: (letter, micro-batch)."""
    ranks = collections.defaultdict(list)
    for event in json.loads(text)["traceEvents"]:
        if event.get("cat") == "phase" and event["name"] in LETTERS:
            ranks[event["pid"]].append((event["ts"], event["name"], event["args"]["micro_batch"]))
    stages = []
    for rank in sorted(ranks):
        seen, steps = collections.Counter(), []
        chunks = max(collections.Counter(step[1:] for step in ranks[rank]).values())
        for _, name, micro_batch in sorted(ranks[rank]):
            chunk = seen[name, micro_batch]  # a backward begins with the last chunk
            seen[name, micro_batch] += 1
            steps.append((LETTERS[name][chunks - 1 - chunk if name == "backward" else chunk], micro_batch))
        stages.append(steps)
    return stages


def steps_of_text(text):
    stages = []
    for line in text.splitlines():
        seen = collections.Counter()
        steps = []
        for letter in line.split(":")[1].split():
            steps.append((letter, seen[letter]))
            seen[letter] += 1
        stages.append(steps)
    return stages


def source_of(stage, letter, stages, chunked):
    """Returns the stage and letter whose result a step needs, or None."""
    if letter in "Ff":
        if stage > 0:
            return stage - 1, letter
        return (stages - 1, "F") if letter == "f" else None
    if letter in "Bb":
        if stage + 1 < stages:
            return stage + 1, letter
        return (0, "b") if letter == "B" and chunked else None
    return None


def slots(stages, halves):
    if halves:
        stages = [[half for letter, micro in steps for half in ([("B", micro), ("W", micro)] if letter == "B" else [(letter, micro)])]
                  for steps in stages]
    chunked = any(letter == "f" for steps in stages for letter, _ in steps)
    done, at, rows = set(), [0] * len(stages), [[] for _ in stages]
    while any(at[s] < len(steps) for s, steps in enumerate(stages)):
        now = []
        for s, steps in enumerate(stages):
            step = steps[at[s]] if at[s] < len(steps) else None
            source = step and source_of(s, step[0], len(stages), chunked)
            if source and halves and source[1] == "B":
                source = source[0], "W"
            if step and (not source or (*source, step[1]) in done):
                now.append((s, *step))
                at[s] += 1
                rows[s].append(f"{step[0]}{step[1]}")
            else:
                rows[s].append(".")
        if not now:
            sys.exit("slots.py: the stages wait for each other")
        done.update(now)
    return rows


def main():
    *options, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    stages = steps_of_trace(text) if text.startswith("{") else steps_of_text(text)
    for stage, row in enumerate(slots(stages, "--halves" in options)):
        print(f"stage {stage}:", *row)


main()
