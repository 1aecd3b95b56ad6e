#!/usr/bin/env python3
"""Checks numbers that pages state against what they count."""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
         "eighteen nineteen twenty").split()


def text(name):
    return (ROOT / name).read_text()


def found(pattern, name):
    """The first group of the pattern in a page."""
    match = re.search(pattern, text(name))
    return match.group(1) if match else f"nothing like {pattern}"


def number(pattern, name):
    word = found(pattern, name)
    return WORDS.index(word) if word in WORDS else int(word) if word.isdigit() else word


def sources(folder, pattern="**/*"):
    return [p for p in (ROOT / folder).glob(pattern) if p.suffix in (".h", ".cpp")]


def main():
    wrong = []

    def expect(page, what, shown, right, tolerance=0):
        if shown != right and not (isinstance(shown, int) and abs(shown - right) <= tolerance):
            wrong.append(f"{page}: {what}: {shown}, expected {right}")

    readme = text("README.md")
    trainer = re.search(r"The trainer is about .*?The rest is", readme, re.S).group()
    folders = [f"framework/{name}" for name in re.findall(r"`(\w+)`", trainer)]
    files = [ROOT / "pretrain_gpt.cpp"] + sources("models/gpt") + sources("framework", "*")
    lines = sum(path.read_text().count("\n") for path in files + [f for folder in folders for f in sources(folder)])
    expect("README.md", "lines of the trainer", number(r"The trainer is about (\d+) lines", "README.md"), lines, lines // 50)

    tree = readme.split("## The tree")[1].split("## Limits")[0]
    for folder in sorted(p.name for p in (ROOT / "framework").iterdir() if p.is_dir()):
        if f" {folder}/" not in tree:
            wrong.append(f"README.md: the tree has no {folder}/")

    table = re.findall(r"^\d x \d x \d +\d +\d +[\d.]+ +[\d.]+ +yes", readme, re.M)
    picture = re.findall(r"; equal\.", found(r"<desc>(.*?)</desc>", "docs/loss_curves.svg"))
    expect("README.md", "equal curves of the table and of docs/loss_curves.svg", len(table), len(picture))

    for name in ("scikit-build-core", "nanobind"):
        pin = re.search(rf"ANYMESH_{name.upper().replace('-', '_')}_VERSION (\S+)\)", text("cmake/versions.cmake")).group(1)
        expect("pyproject.toml", name, found(rf'"{name}==([^"]+)"', "pyproject.toml"), pin)

    lessons = len([p for p in (ROOT / "tutorials").iterdir() if p.name[:2].isdigit()])
    expect("README.md", "lessons", number(r"the (\w+) \[lessons\]", "README.md"), lessons)
    expect("README.md", "lessons of the tree", number(r"tutorials/ +(\w+) lessons", "README.md"), lessons)

    families = text("docs/hugging-face.md").split("| family |")[1].split("\n\n")[0].count("\n") - 1
    models = next(node.value for node in ast.parse(text("tests/interop/hf_convert.py")).body
                  if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODELS")
    expect("docs/guarantees.md", "families", number(r"Models of (\w+) families", "docs/guarantees.md"), families)
    expect("docs/guarantees.md", "variants", number(r"transformers \((\d+) variants", "docs/guarantees.md"), len(models.keys))
    expect("tutorials/12_fine_tune", "families", number(r"\[(\w+) families\]", "tutorials/12_fine_tune/README.md"), families)
    print("\n".join(wrong) or f"the trainer has {lines} lines, {families} families have {len(models.keys)} variants")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
