"""The program behind tutorials/write_it.sh, which says how to use it.

A check (NAME/check.cpp) prints the answers of a function for many inputs (checks.h). The build links all checks with the
libraries, as the program `write_it`. For a reader's file this module takes the two commands by which the build compiled and
linked a check:

    a .cpp file   is compiled by the check's command, and linked first. The linker takes the first of two definitions.
    a header      is in the check, which is compiled anew with the reader's folder first among the includes.

Then both programs print their answers. The first line that differs is the message. NAME/known.txt has answers that come from
elsewhere, a paper or a sum by hand; they are compared first. NAME/hint.txt has the hints.
"""
import argparse
import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import excerpts  # noqa: E402

RUNS = ROOT / "runs/write_it"
TIMEOUT = 60  # seconds for all answers
WIDTH = 12  # values of a line that a message shows
THROWS = 'throw std::logic_error("not written yet");'


class Refused(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    lesson: int
    path: str        # the file that has it
    function: str    # the name, as excerpts.definition() takes it
    contract: str    # the file, and a part of the line under the comment that says what it does
    line: str        # for the list
    stub: str = THROWS

    @property
    def contract_path(self):
        return self.contract.split(" ", 1)[0]


PLACES = {place.name: place for place in (
    Place("philox", 1, "framework/kernels/philox.h", "philox", "framework/kernels/philox.h using PhiloxBlock",
          "random numbers from a counter and a key", "return {};  // not written yet: a constexpr function cannot throw"),
    Place("causal_mask", 1, "models/gpt/attention.cpp", "ParallelAttention::visible",
          "models/gpt/attention.h torch::Tensor visible(", "which keys a query sees"),
    Place("all_reduce", 3, "framework/comm/thread_job.cpp", "all_reduce", "framework/comm/communicator.h enum class ReduceOp",
          "the sum over ranks, in rank order: a reduce-scatter and an all-gather"),
    Place("column_backward", 4, "framework/tensor_parallel/mappings.cpp", "start_gradient",
          "framework/tensor_parallel/mappings.h torch::Tensor enter_tensor_parallel(",
          "the gradient of what enters a column-parallel layer"),
    Place("one_f_one_b", 5, "framework/pipeline/schedule.cpp", "one_f_one_b",
          "framework/pipeline/schedule.h std::vector<Step> one_f_one_b(",
          "the order of a pipeline stage's forwards and backwards"),
    Place("zero1", 6, "framework/zero/sum_reductions.cpp", "SumReductions::Part::start",
          "framework/zero/sum_reductions.h void start()", "the gradients' sums, at ZeRO 1 of a rank's partition alone"),
    Place("coord_of", 7, "framework/comm/topology.h", "coord_of", "framework/comm/topology.h struct Coord",
          "from a rank to its place in the mesh"),
    Place("loss_scaler", 7, "framework/optim/loss_scaler.cpp", "LossScaler::update",
          "framework/optim/loss_scaler.h struct LossScaler", "when fp16's loss scale falls and rises"),
    Place("fragments", 10, "framework/format/layout/partition.cpp", "FlatGroup::fragments",
          "framework/format/layout/partition.h struct Fragment", "which elements of which parameters a ZeRO partition has"),
    Place("merge", 10, "framework/format/layout/shard_layout.h", "ShardLayout::for_each_run",
          "framework/format/layout/shard_layout.h template <typename Fn>", "where a tp slice's elements lie in the whole tensor"),
)}


# The copy without the body, and the body.

def body_of(lines, function):
    """The range of lines between a function's braces."""
    begin, end = excerpts.definition(lines, function)
    opens = next(i for i in range(begin, end) if lines[i].rstrip().endswith("{"))
    return opens + 1, end - 1


def read(path):
    return (ROOT / path).read_text().split("\n")


def with_body(place, body):
    """The text of the place's file with another body."""
    lines = read(place.path)
    begin, end = body_of(lines, place.function)
    return "\n".join(lines[:begin] + body + lines[end:])


def answer(place):
    begin, end = body_of(read(place.path), place.function)
    return read(place.path)[begin:end]


def contract(place):
    """The comment that says what the function does."""
    path, under = place.contract.split(" ", 1)
    lines = read(path)
    begins = [i for i, line in enumerate(lines) if line.lstrip().startswith(under)]
    if not begins:
        raise Refused(f'{path} has no line with "{under}"')
    begin = begins[0]
    while lines[begin - 1].lstrip().startswith("//"):
        begin -= 1
    return [line.strip() for line in lines[begin:begins[0]]]


def emptied(place):
    """The text of the place's file with a body that says what to write."""
    indent = re.match(" *", answer(place)[0]).group()
    body = [f"// Write this. {place.contract_path} says:", "//", *contract(place), "", place.stub]
    text = with_body(place, [(indent + line).rstrip() for line in body])
    return text.replace("#include", "#include <stdexcept>\n#include", 1) if place.stub == THROWS else text


def outside(place, text):
    """The text but for the function's body and includes, to tell if the trainer's file is a newer one."""
    lines = text.split("\n")
    begin, end = body_of(lines, place.function)
    return [line for line in lines[:begin] + lines[end:] if not line.startswith("#include")]


# The program with a reader's file in it.

class Build:
    def __init__(self, binaries):
        self.program = binaries / "write_it"
        self.folder = binaries.parent
        cache = self.folder / "CMakeCache.txt"
        if not cache.is_file() or "CMAKE_GENERATOR:INTERNAL=Ninja" not in cache.read_text():
            raise Refused(f"no build by Ninja in {self.folder}: make one with tutorials/quickstart.sh, or name its executables "
                          "in ANYMESH_BIN")
        self.ninja = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", cache.read_text(), re.M).group(1)

    def update(self):
        """Builds the checks if they are not current."""
        done = subprocess.run(["cmake", "--build", str(self.folder), "--target", "write_it"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Refused(f"the checks do not build:\n{done.stdout[-3000:]}")

    def command(self, target):
        """The command that makes a file of the build, as words."""
        done = subprocess.run([self.ninja, "-t", "commands", "-s", target], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{self.ninja} does not know {target}: {done.stderr}")
        return [word for word in shlex.split(done.stdout) if word not in (":", "&&")]

    def run(self, command):
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Refused(f"it does not build:\n{done.stdout[:6000]}")
        if done.stdout:
            print(done.stdout, file=sys.stderr)

    def link(self, place, folder):
        """Builds and returns the check with the reader's file, folder / place.path."""
        check = f"tutorials/write_it/CMakeFiles/write_it.dir/{place.name}/check.cpp.o"
        source, made, program = folder / place.path, folder / "reader.o", folder / "check"
        compiled = self.command(check)
        compiled[compiled.index("-o") + 1] = str(made)
        compiled[compiled.index("-MF") + 1] = str(made) + ".d"
        if source.suffix == ".cpp":
            compiled[compiled.index("-c") + 1] = str(source)
        compiler = next(i for i, word in enumerate(compiled) if word.startswith("-"))
        # An unused parameter is no news in a body that is not written yet.
        self.run(compiled[:compiler] + ["-I", str(folder)] + compiled[compiler:] + ["-Wno-error", "-Wno-unused"])
        linked = self.command("bin/write_it")
        linked[linked.index("-o") + 1] = str(program)
        self.run(linked[:1] + [str(made), "-Wl,-z,muldefs"] + linked[1:])
        return program


# The comparison.

def answers(program, name):
    """The program's lines, and how it ended if it did not end well."""
    end = None
    try:
        done = subprocess.run([str(program), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        output = done.stdout
        if done.returncode:
            end = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with status {done.returncode}"
            end += "".join(f"\n  {line}" for line in done.stderr.decode(errors="replace").split("\n")[:4] if line)
    except subprocess.TimeoutExpired as expired:
        output, end = expired.stdout or b"", f"has not ended after {TIMEOUT} s"
    lines = output.decode(errors="replace").split("\n")
    return [line.split("\t") for line in lines if line], end


def shown(values, at):
    begin = max(0, min(at - WIDTH // 2, len(values) - WIDTH))
    part = values[begin:begin + WIDTH]
    return ("... " if begin else "") + " ".join(part) + (" ..." if begin + WIDTH < len(values) else "")


def difference(expected, got):
    """What differs first in two lines for one input, or None."""
    (where, name, *right), found = expected, got[2:]
    if right == found:
        return None
    if found and found[0].startswith("! ") and not (right and right[0].startswith("! ")):
        return f"{where}: {found[0][2:]}"
    if not name:
        return f"{where}: expected {right[0]}, got {' '.join(found) or 'nothing'}"
    at, (one, other) = next((i, pair) for i, pair in enumerate(itertools.zip_longest(right, found)) if pair[0] != pair[1])
    return "\n".join([f"{where}: {name}[{at}]: expected {one or 'no more'}, got {other or 'no more'}",
                      f"  expected  {shown(right, at)}", f"  got       {shown(found, at)}"])


def known(place):
    path = HERE / place.name / "known.txt"
    return [line.split("\t") for line in path.read_text().split("\n") if line and not line.startswith("#")]


def right_answers(place, original):
    """The lines of the trainer's function."""
    lines, end = answers(original, place.name)
    if end:
        raise Refused(f"the trainer's own function: {end}")
    return lines


def compare(place, expected, program):
    """Returns how many answers are as expected. Throws Refused with the first one that is not."""
    got, end = answers(program, place.name)
    whole = got[:-1] if end else got  # the last line may be cut
    by_input = {tuple(line[:2]): line for line in whole}
    right = {tuple(line[:2]): line for line in expected}
    differ = [d for d in (difference(line, by_input[tuple(line[:2])]) for line in known(place) + expected
                          if tuple(line[:2]) in by_input) if d]
    if differ:
        wrong = sum(difference(right[key], line) is not None for key, line in by_input.items() if key in right)
        raise Refused(f"{differ[0]}\n{wrong} of {len(expected)} answers differ")
    if end:
        raise Refused(f"{got[-1][0] if got else 'the check'}: {end}")
    missing = [line for line in known(place) + expected if tuple(line[:2]) not in by_input]
    if missing:
        raise Refused(f"{missing[0][0]}: no answer")
    return len(expected)


# The commands.

def folder_of(place):
    return RUNS / place.name


def shown_path(path):
    path = pathlib.Path(os.path.abspath(path))
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def stamp(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def state(place):
    file, passed = folder_of(place) / place.path, folder_of(place) / "passed"
    if not file.is_file():
        return "not begun"
    if passed.is_file() and passed.read_text() == stamp(file):
        return "passes"
    return "begun" if file.read_text() == emptied(place) else "written"


def show_list():
    print(f"{'name':<17}{'lesson':<8}{'state':<11}what it computes")
    for place in PLACES.values():
        print(f"{place.name:<17}{place.lesson:<8}{state(place):<11}{place.line}")


def begin(place, file):
    file.parent.mkdir(parents=True)
    file.write_text(emptied(place))
    line = next(i for i, text in enumerate(file.read_text().split("\n")) if "// Write this." in text) + 1
    print(f"edit {shown_path(file)}, line {line}: write the body of {place.function}.\n"
          f"Its contract is there, and in {place.contract_path}. Then run: tutorials/write_it.sh {place.name}")


def check(place, file, build, folder):
    """Builds and checks a file, with its objects in `folder`."""
    target = folder / place.path
    if file != target:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text())
    return compare(place, right_answers(place, build.program), build.link(place, folder))


def main(args):
    parser = argparse.ArgumentParser(prog="tutorials/write_it.sh", description="Ten functions of the trainer to write again.")
    parser.add_argument("name", nargs="?", choices=list(PLACES), metavar="NAME")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--hint", action="store_true", help="one or two hints")
    what.add_argument("--answer", action="store_true", help="the body as the trainer has it")
    what.add_argument("--check", metavar="FILE", type=pathlib.Path, help="checks another copy of the file")
    options = parser.parse_args(args)
    if not options.name:
        if options.hint or options.answer or options.check:
            parser.error("NAME is missing")
        return show_list()
    place = PLACES[options.name]
    file = options.check or folder_of(place) / place.path
    if options.hint:
        return print((HERE / place.name / "hint.txt").read_text(), end="")
    if options.answer:
        return print("\n".join(answer(place)))
    if not file.is_file():
        if options.check:
            raise Refused(f"no file {file}")
        return begin(place, file)
    binaries = pathlib.Path(os.environ.get("ANYMESH_BIN") or ROOT / "build/release/bin").resolve()
    build = Build(binaries)
    build.update()
    if outside(place, file.read_text()) != outside(place, "\n".join(read(place.path))):
        print(f"note: {shown_path(file)} differs from {place.path} outside of the body", file=sys.stderr)
    count = check(place, file, build, RUNS / ".checked" / place.name if options.check else folder_of(place))
    if not options.check:
        (folder_of(place) / "passed").write_text(stamp(file))
    print(f"ok: {place.name}: {count} answers are those of {place.path}, bit for bit")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Refused, excerpts.Refused) as error:
        print(f"FAIL: {error}", file=sys.stderr)
        sys.exit(1)
