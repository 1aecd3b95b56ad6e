#!/usr/bin/env python3
"""Keeps "Predict first" in the pages as the lessons' runs have it, and tells a reader who predicted.

    tutorials/predictions.py [--check] [NN_name]...    these lessons, or all, after their runs
    tutorials/predictions.py --told NN_name            run.sh --predict ends with it

A run writes runs/NN_name/predictions.txt: lines of the right answer, the tolerance, the question and what the reader said, with tabs
between them (predict.sh). A page has the questions, and answers that begin with the number. The text behind it is the author's:

    <!-- questions -->
    1. How many slots does each stage wait?
    <!-- /questions -->
    <!-- answers -->
    1. **6** of 22 slots: ...
    <!-- /answers -->

This program puts in the questions and the numbers. --check changes nothing, and fails if a page has another question, or a number that
is not within the tolerance. A lesson has two questions at least.
"""
import re
import sys
import textwrap

from excerpts import ROOT, Refused, for_lessons

NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|-?\.\d+")
WIDTH = 126


def agrees(said, right, tolerance):
    """Whether the numbers of two texts agree: 64 x 128 and [64, 128]. None if there is no number in the first."""
    rights = [float(n) for n in NUMBER.findall(right)]
    if len(rights) == 1:
        said = re.sub(r",(?=\d{3})", "", said)  # 939,528
    numbers = [float(n) for n in NUMBER.findall(said)]
    if not numbers:
        return None
    relative = tolerance.endswith("%")
    allowed = float(tolerance.rstrip("%")) * (0.01 if relative else 1)
    return len(numbers) == len(rights) and all(
        abs(n - r) <= allowed * (abs(r) if relative else 1) + 1e-9 for n, r in zip(numbers, rights))


def predictions(name):
    """The rows [answer, tolerance, question, said] of a run."""
    file = ROOT / "runs" / name / "predictions.txt"
    return [line.split("\t") for line in file.read_text().splitlines()] if file.is_file() else []


def part_of(name, text, part):
    """The range of a page's questions or answers."""
    found = list(re.finditer(rf"^<!-- {part} -->\n(.*?)^<!-- /{part} -->$", text, re.M | re.S))
    if len(found) != 1:
        raise Refused(f"tutorials/{name}/README.md: expected one <!-- {part} --> and one <!-- /{part} -->")
    return found[0].span(1)


def items_of(block):
    """The items of a numbered list, each in one line."""
    return [re.sub(r"\s+", " ", item).strip() for item in re.split(r"^\d+\. ", block, flags=re.M)[1:]]


def answers_of(name, text):
    """The number and the text behind it, for each answer of a page."""
    found = [re.fullmatch(r"\*\*(.+?)\*\*(.*)", item) for item in items_of(text[slice(*part_of(name, text, "answers"))])]
    if not all(found):
        raise Refused(f"tutorials/{name}/README.md: an answer begins with a number in bold, **6** of 22 slots: ...")
    return [m.groups() for m in found]


def listed(items):
    return "".join("\n".join(textwrap.wrap(f"{i}. {item}", WIDTH, subsequent_indent="   ", break_long_words=False,
                                           break_on_hyphens=False)) + "\n" for i, item in enumerate(items, 1))


def update(name, check):
    page = ROOT / "tutorials" / name / "README.md"
    text, rows = page.read_text(), predictions(name)
    if len(rows) < 2:
        raise Refused(f"runs/{name}/predictions.txt: expected two questions: ask them in run.sh, and run it")
    answers = answers_of(name, text)
    if len(answers) != len(rows):
        raise Refused(f"{page.relative_to(ROOT)}: {len(answers)} answers to {len(rows)} questions")
    if not check:
        for part, items in (("questions", [row[2] for row in rows]),
                            ("answers", [f"**{row[0]}**{why}" for row, (_, why) in zip(rows, answers)])):
            begin, end = part_of(name, text, part)
            text = text[:begin] + listed(items) + text[end:]
        page.write_text(text)
    refresh = f"run tutorials/refresh.sh {name}"
    if items_of(text[slice(*part_of(name, text, "questions"))]) != [row[2] for row in rows]:
        raise Refused(f"{page.relative_to(ROOT)}: the questions are not those of run.sh: {refresh}")
    for (shown, _), (right, tolerance, question, _) in zip(answers, rows):
        if check and not agrees(shown, right, tolerance):
            raise Refused(f"{page.relative_to(ROOT)}: {question} It says {shown}, the run {right}: {refresh}")


def told(name):
    """Prints what the reader said and what is right, with the page's reason if the page has this number."""
    answers = answers_of(name, (ROOT / "tutorials" / name / "README.md").read_text())
    for (shown, why), (right, tolerance, question, said) in zip(answers, predictions(name)):
        good = agrees(said, right, tolerance)
        verdict = (f"it is {right}" if not said else f"you said '{said}', which is no number; it is {right}" if good is None else
                   f"you said {said}, right: {right}" if good else f"you said {said}, it is {right}")
        reason = re.sub(r"[`$\\]|\[(.*?)\]\(.*?\)", r"\1", why) if agrees(shown, right, tolerance) else ""
        print(f"{question}\n" + textwrap.fill(verdict + reason, WIDTH, initial_indent="  ", subsequent_indent="  "))


def main(args):
    if args[:1] == ["--told"]:
        told(args[1])
        return 0
    return for_lessons(args, update)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
