#!/usr/bin/env python3
"""Runs the exercises of the lessons ("Try breaking it") and checks that they end as their pages show.

    tutorials/exercises.py [--write] [--bin FOLDER] [NN_name]...     these lessons, or all

An exercise is a block of commands and of some lines of their output:

    <!-- exercise -->
    ```
    $ sed -i 's/ again$/& --seed 7/' tutorials/01_one_process/run.sh
    $ tutorials/01_one_process/run.sh
    ...
    FAIL: 01_one_process: the same command again: not bit-identical
    ```
    <!-- /exercise -->

Each runs in a copy of tutorials/, so that nothing here changes. The shown lines must come in this order, with any lines between
them; "..." in a line stands for any text. Numbers with a point may differ by 5 %, since their last digits depend on the processor; all else must be equal. A sed that
changes nothing is an error. --write puts in the numbers of this run. FOLDER has the executables (else $ANYMESH_BIN, else
build/release/bin).
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^<!-- exercise -->\n```\n(.*?)^```\n<!-- /exercise -->$", re.M | re.S)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TIMEOUT = 300


class Failed(Exception):
    pass


def run(commands, binaries):
    """The output of shell commands at the root of a copy, which shares all but tutorials/ and runs/."""
    with tempfile.TemporaryDirectory(prefix="exercise.") as folder:
        copy = pathlib.Path(folder)
        for entry in ROOT.iterdir():
            if entry.name not in ("tutorials", "runs", ".git"):
                (copy / entry.name).symlink_to(entry)
        shutil.copytree(ROOT / "tutorials", copy / "tutorials")
        output = ""
        for command in commands:
            before = {p: p.read_bytes() for p in copy.glob("tutorials/*/run.sh")}
            result = subprocess.run(["bash", "-c", command], cwd=copy, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT,
                                    env=dict(os.environ, ANYMESH_BIN=str(binaries),
                                             PATH=f"{binaries}:{os.environ['PATH']}"))
            output += result.stdout
            if command.startswith("sed ") and (result.returncode or all(p.read_bytes() == b for p, b in before.items())):
                raise Failed(f"it changes nothing: {command}\n{result.stdout}")
        return output.split("\n")


def pattern_of(shown):
    """A regular expression for a shown line, with a group for each number. "..." in the line stands for any text."""
    parts = [NUMBER.sub("\0", part) for part in shown.split("...")]
    return re.compile(".*".join(re.escape(part).replace(re.escape("\0"), f"({NUMBER.pattern})") for part in parts))


def close(shown, number):
    return shown == number or ("." in shown and abs(float(shown) - float(number)) <= 0.05 * abs(float(number)))


def exercise(block, binaries, write):
    """Returns the block, with `write` with the numbers of this run. Throws Failed if a line of it does not come."""
    commands = [line[2:] for line in block.replace("\\\n", " ").split("\n") if line.startswith("$ ")]
    output, at, new = run(commands, binaries), 0, []
    in_command = False
    for shown in block.rstrip("\n").split("\n"):
        if in_command or shown.startswith("$ ") or shown == "...":
            in_command = shown.endswith("\\")
            new.append(shown)
            continue
        pattern, numbers = pattern_of(shown), NUMBER.findall(shown)
        for i in range(at, len(output)):
            found = pattern.fullmatch(output[i])
            if found and (write or all(map(close, numbers, found.groups()))):
                values = iter(found.groups())
                new.append(NUMBER.sub(lambda _: next(values), shown) if write else shown)
                at = i + 1
                break
        else:
            raise Failed(f"this line does not come: {shown}\nThe output ends with:\n" + "\n".join(output[-12:]))
    return "\n".join(new) + "\n"


def lesson(name, binaries, write):
    """Returns what to print, and whether the exercises of the page were as shown."""
    page = ROOT / "tutorials" / name / "README.md"
    text = page.read_text()
    found = BLOCK.findall(text)
    begun = time.monotonic()
    if not found or len(found) != len(re.findall(r"^<!-- exercise", text, re.M)):
        return f"FAIL: {name}: expected exercises, each a block between <!-- exercise --> and <!-- /exercise -->", False
    try:
        new = [exercise(block, binaries, write) for block in found]
    except (Failed, subprocess.TimeoutExpired) as error:
        return f"FAIL: {name}: {error}", False
    if write:
        blocks = iter(new)
        page.write_text(BLOCK.sub(lambda m: f"<!-- exercise -->\n```\n{next(blocks)}```\n<!-- /exercise -->", text))
    return f"ok: {name}: {len(found)} exercises, {time.monotonic() - begun:.0f} s", True


def main():
    parser = argparse.ArgumentParser(description="Runs the exercises of the lessons.")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--bin", default=os.environ.get("ANYMESH_BIN") or ROOT / "build/release/bin")
    parser.add_argument("lessons", nargs="*")
    args = parser.parse_args()
    binaries = pathlib.Path(args.bin).resolve()
    names = args.lessons or sorted(p.name for p in (ROOT / "tutorials").glob("[0-9][0-9]_*"))
    good = True
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for line, ok in pool.map(lambda name: lesson(name, binaries, args.write), names):
            print(line, flush=True)
            good = good and ok
    return not good


if __name__ == "__main__":
    sys.exit(main())
