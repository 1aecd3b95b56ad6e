#!/usr/bin/env python3
"""Puts pieces of the source into the lessons, so that a page shows the code as it is.

    tutorials/excerpts.py [--check] [NN_name]...     these lessons, or all

A page marks the place, and this program fills it with the code and a link to its line:

    <!-- code framework/pipeline/schedule.h one_f_one_b -->
    <!-- code framework/zero/stage.h "//   stage  gradients" .. "micro-batch" -->
    ...
    <!-- /code -->

A name takes the function, method or struct of that name, from its first line to its closing brace. Two texts take the lines from
the only one with the first text to the next one with the second text. --check changes nothing and fails if a page is not current.
An excerpt that is not found, not the only one, or longer than 20 lines is an error.
"""
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 20
PLACE = re.compile(r"^<!-- code (.+?) -->\n(.*?)^<!-- /code -->$", re.M | re.S)
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".sh": "bash"}


class Refused(Exception):
    pass


def definition(lines, name):
    """The range of lines of the function or type `name`."""
    head = re.compile(r"(^|[\s:*&])" + re.escape(name) + r"(\(|\s*(final\s*)?[:{])")
    found = []
    for begin, line in enumerate(lines):
        if not head.search(line) or line.lstrip().startswith(("//", "return", "#")):
            continue
        depth, opened = 0, False
        for end in range(begin, len(lines)):
            code = lines[end].split("//")[0]
            depth += code.count("{") - code.count("}")
            opened = opened or "{" in code
            if not opened and code.rstrip().endswith(";"):
                break  # a declaration, or a call
            if opened and depth == 0:
                found.append((begin, end + 1))
                break
        else:
            raise Refused("no closing brace")
    # A call in another function that happens to look like a definition is inside of that function, so it is indented more.
    indent = [len(lines[begin]) - len(lines[begin].lstrip()) for begin, _ in found]
    found = [f for f, i in zip(found, indent) if i == min(indent)]
    if len(found) != 1:
        raise Refused(f"{len(found)} definitions, expected one")
    return found[0]


def between(lines, first, last):
    begins = [i for i, line in enumerate(lines) if first in line]
    if len(begins) != 1:
        raise Refused(f'{len(begins)} lines with "{first}", expected one')
    for end in range(begins[0] + 1, len(lines)):
        if last not in lines[end]:
            continue
        depth = sum(line.count("{") - line.count("}") for line in lines[begins[0]:end + 1])
        while depth > 0 and lines[end + 1].strip() in ("}", "};", "});"):  # the closing braces right after it
            end, depth = end + 1, depth - 1
        return begins[0], end + 1
    raise Refused(f'no "{last}" after it')


def excerpt(page, marker):
    """The text between the markers: a block of code, and a link to it."""
    path, *what = shlex.split(marker)
    source = ROOT / path
    if not source.is_file():
        raise Refused("no such file")
    lines = source.read_text().split("\n")
    if len(what) == 1:
        begin, end = definition(lines, what[0])
    elif len(what) == 3 and what[1] == "..":
        begin, end = between(lines, what[0], what[2])
    else:
        raise Refused('expected FILE NAME or FILE "TEXT" .. "TEXT"')
    if end - begin > LONGEST:
        raise Refused(f"{end - begin} lines, at most {LONGEST} are allowed")
    block = lines[begin:end]
    indent = min(len(line) - len(line.lstrip()) for line in block if line.strip())
    up = "../" * len(page.parent.relative_to(ROOT).parts)
    return "\n".join([f"```{LANGUAGES.get(source.suffix, '')}", *(line[indent:] for line in block), "```",
                      f"[{path}, line {begin + 1}]({up}{path}#L{begin + 1})", ""])


def filled(page, text):
    def fill(place):
        try:
            return f"<!-- code {place[1]} -->\n{excerpt(page, place[1])}<!-- /code -->"
        except Refused as error:
            raise Refused(f"{page.relative_to(ROOT)}: code {place[1]}: {error}") from None

    if len(PLACE.findall(text)) != len(re.findall(r"^<!-- code ", text, re.M)):
        raise Refused(f"{page.relative_to(ROOT)}: a <!-- code --> without its <!-- /code -->")
    return PLACE.sub(fill, text)


def update(name, check):
    page = ROOT / "tutorials" / name / "README.md"
    text = page.read_text()
    new = filled(page, text)
    if check and new != text:
        raise Refused(f"{page.relative_to(ROOT)}: the code has changed: run tutorials/excerpts.py {name}")
    if not check:
        page.write_text(new)


def for_lessons(args, work):
    """Calls work(name, check) for the lessons among the arguments, or all. Prints what is refused, and returns the exit status."""
    names = [a for a in args if a != "--check"] or sorted(p.name for p in (ROOT / "tutorials").glob("[0-9][0-9]_*"))
    status = 0
    for name in names:
        try:
            work(name, "--check" in args)
        except Refused as error:
            print(f"FAIL: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(for_lessons(sys.argv[1:], update))
