#!/usr/bin/env python3
"""write_it.py FOLDER_OF_EXECUTABLES: tests tutorials/write_it.sh.

For each function, its empty body fails, the trainer's passes, and the wrong one in wrong/NAME.txt fails with the message of that
file's first line. One compiled file has all three bodies, which takes a third of the time; WRITE_IT_BODY chooses.
"""
import concurrent.futures
import contextlib
import io
import os
import pathlib
import stat
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tutorials/write_it"))
import write_it  # noqa: E402

CHOSEN = """#include <cstdlib>
#include <type_traits>
inline bool chosen(char body) { return std::getenv("WRITE_IT_BODY") && *std::getenv("WRITE_IT_BODY") == body; }
"""


class Failed(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failed(text)


def refusal(call, *args):
    """The message with which a call refuses."""
    try:
        call(*args)
    except write_it.Refused as error:
        return str(error)
    raise Failed(f"nothing refused: {call.__name__} {args}")


def with_environment(program, body, folder):
    """A program that runs another one with WRITE_IT_BODY."""
    return script(folder / body, f'WRITE_IT_BODY={body} exec "{program}" "$@"')


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_place(place, build, folder):
    first, *wrong = (HERE / "wrong" / f"{place.name}.txt").read_text().rstrip("\n").split("\n")
    empty = write_it.emptied(place).split("\n")
    begin, end = write_it.body_of(empty, place.function)
    right = write_it.answer(place)
    expect(write_it.with_body(place, right) == (write_it.ROOT / place.path).read_text(), f"{place.name}: not the same file")
    same = write_it.outside(place, "\n".join(empty)) == write_it.outside(place, write_it.with_body(place, right))
    expect(same, f"{place.name}: the copy differs outside of the body")
    guard = "true" if place.stub == write_it.THROWS else "!std::is_constant_evaluated()"
    leave = ["return;"] if "void " in empty[begin - 1] else []
    text = write_it.with_body(place, [f"if ({guard}) {{",
                                      "if (chosen('e')) {", *empty[begin:end], "}",
                                      "if (chosen('w')) {", *wrong, *leave, "}",
                                      "}", *right]).replace("#include", CHOSEN + "#include <stdexcept>\n#include", 1)
    file = folder / place.path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    program = build.link(place, folder)
    expected = write_it.right_answers(place, build.program)
    expect(len(expected) == len({tuple(line[:2]) for line in expected}), f"{place.name}: two lines for one input")
    count = write_it.compare(place, expected, program)
    for body, message in ("empty", "not written yet" if place.stub == write_it.THROWS else "got 00000000"), ("wrong", first):
        got = refusal(write_it.compare, place, expected, with_environment(program, body, folder))
        expect(message.removeprefix("expect: ") in got, f"{place.name}, {body} body: expected {message}\ngot {got}")
        expect(f"of {count} answers differ" in got, f"{place.name}, {body} body: no count in {got}")
    page = next((write_it.ROOT / "tutorials").glob(f"{place.lesson:02}_*/README.md")).read_text()
    expect(f"tutorials/write_it.sh {place.name}`" in page, f"lesson {place.lesson} does not name {place.name}")
    table = (write_it.ROOT / "tutorials/README.md").read_text()
    expect(f"| `{place.name}` | {place.lesson} | {place.line} | " in table, f"tutorials/README.md lacks {place.name}")
    return f"ok: {place.name}: {count} answers; {got.splitlines()[0]}"


def output(*args):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        write_it.main(list(args))
    return text.getvalue()


def test_commands(folder):
    """The way of a reader, on one function."""
    write_it.RUNS = folder
    place = write_it.PLACES["coord_of"]
    file = folder / place.name / place.path

    def is_state(state):
        line = next(line for line in output().split("\n") if line.startswith(place.name))
        expect(f" {state} " in line, f"expected the state {state}: {line}")

    expect(output().count("\n") == 11, "the list has not ten lines and a title")
    is_state("not begun")
    expect(f"edit {file}, line " in output(place.name), "the copy is not announced")
    is_state("begun")
    expect("pp 2, dp 2, tp 2, rank 0: not written yet" in refusal(write_it.main, [place.name]), "the empty body passes")
    right = (write_it.ROOT / place.path).read_text()
    file.write_text(right.replace("rank % tp_size};", "rank % tp_size}"))
    expect("topology.h:" in refusal(write_it.main, [place.name]), "no compiler's message with the file's name")
    file.write_text(right)
    is_state("written")
    expect("are those of framework/comm/topology.h, bit for bit" in output(place.name), "the trainer's body does not pass")
    is_state("passes")
    expect("ok: coord_of" in output(place.name, "--check", str(write_it.ROOT / place.path)), "--check")
    expect(".dp = rank / tp_size % dp_size" in output(place.name, "--answer"), "--answer")
    for name in write_it.PLACES:
        expect(1 < len(output(name, "--hint").split("\n")) < 8, f"the hint of {name}")
    return "ok: the commands"


def test_ends(build, folder):
    """Programs that do not answer all."""
    place, answers = write_it.PLACES["coord_of"], folder / "answers"
    expected = write_it.right_answers(place, build.program)
    answers.write_text("".join("\t".join(line) + "\n" for line in expected))
    write_it.TIMEOUT = 1
    for name, text, message in (("crash", "kill -SEGV $$", "rank 2: ended by signal 11"),
                                ("hang", "exec sleep 9", "rank 2: has not ended after 1 s"),
                                ("short", "", "rank 3: no answer")):
        got = refusal(write_it.compare, place, expected, script(folder / name, f'head -3 "{answers}"; {text}'))
        expect(f"pp 2, dp 2, tp 2, {message}" in got, f"{name}: expected {message}\ngot {got}")
    return "ok: programs that end early"


def main(binaries):
    os.environ["ANYMESH_BIN"] = binaries
    write_it.TIMEOUT = 300  # other tests run beside this one
    build = write_it.Build(pathlib.Path(binaries).resolve())
    write_it.Build.update = lambda self: None  # ctest has built it
    status = 0
    with tempfile.TemporaryDirectory(prefix="write_it.") as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = pathlib.Path(folder)
        torch_first = sorted(write_it.PLACES.values(), key=lambda place: not place.path.endswith(".cpp"))
        tests = [pool.submit(test_place, place, build, folder / "places" / place.name) for place in torch_first]
        for test in tests:
            try:
                print(test.result(), flush=True)
            except (Failed, write_it.Refused) as error:
                print(f"FAIL: {error}", file=sys.stderr, flush=True)
                status = 1
        try:
            print(test_commands(folder / "runs"))
            print(test_ends(build, folder))
        except (Failed, write_it.Refused) as error:
            print(f"FAIL: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
