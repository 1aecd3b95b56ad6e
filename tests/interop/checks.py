"""What the scripts of this folder share: our programs, comparisons of what checkpoints hold, and lines that say how cases end.

    script.py FOLDER_OF_EXECUTABLES ...          each takes this as its first argument
"""
import enum
import pathlib
import shutil
import subprocess
import sys
import traceback

import numpy
import torch

from ranks import jobs_on_ranks

PROGRAMS = pathlib.Path(sys.argv[1])
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Mismatch(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Mismatch(what)


# ---- Programs

def ended(program, *arguments):
    return subprocess.run([PROGRAMS / program, *map(str, arguments)], capture_output=True, text=True)


def our(program, *arguments):
    """What it prints."""
    done = ended(program, *arguments)
    expect(done.returncode == 0, f"{program} {' '.join(map(str, arguments))}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def refusal(program, *arguments):
    """Its message, where it refuses."""
    done = ended(program, *arguments)
    expect(done.returncode == 1, f"{program}: exit status {done.returncode}, expected a refusal: {done.stderr[-2000:]}")
    return done.stderr


def our_logits(tokens, scratch, *flags):
    """Those of a checkpoint's model, which gpt_logits loads by these flags."""
    tokens.numpy().tofile(scratch / "tokens")
    (scratch / "logits").unlink(missing_ok=True)
    our("gpt_logits", scratch / "tokens", scratch / "logits", *flags)
    return torch.frombuffer(bytearray((scratch / "logits").read_bytes()), dtype=torch.float32).view(*tokens.shape, -1)


# ---- Values

def load(path, weights_only=False):
    return torch.load(path, map_location="cpu", weights_only=weights_only)


def bits(tensor):
    return tensor.detach().flatten().contiguous().view(torch.uint8)


def differences(a, b, where=""):
    """Yields the places where two objects of a checkpoint are not the same, in type, order of keys, or bits."""
    if type(a) is not type(b) and not (torch.is_tensor(a) and torch.is_tensor(b)):
        yield f"{where}: {type(a).__name__} in ours, {type(b).__name__} in theirs"
    elif torch.is_tensor(a):
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{where}: {a.dtype} {tuple(a.shape)} in ours, {b.dtype} {tuple(b.shape)} in theirs"
        elif not torch.equal(bits(a), bits(b)):
            yield f"{where}: {(bits(a) != bits(b)).sum()} of {bits(a).numel()} bytes"
    elif isinstance(a, dict):
        if list(a) != list(b):
            yield f"{where}: keys {list(a)} in ours, {list(b)} in theirs"
        for key in a.keys() & b.keys():
            yield from differences(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield f"{where}: {len(a)} items in ours, {len(b)} in theirs"
        for i, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, f"{where}[{i}]")
    elif isinstance(a, numpy.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            yield f"{where}: an array differs"
    elif hasattr(a, "__dict__") and not isinstance(a, enum.Enum):
        yield from differences(vars(a), vars(b), where)
    elif a != b:
        yield f"{where}: {a!r} in ours, {b!r} in theirs"


def tensor_differences(a, b, where=""):
    """The same for tensors by name, in any order."""
    return differences({key: a[key].detach() for key in sorted(a)}, {key: b[key].detach() for key in sorted(b)}, where)


def furthest(losses, expected):
    """How far a loss is off, relative."""
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


def too_far(what, off, bound):
    return [] if off <= bound else [f"{what} are {off:.1e} off, at most {bound:.1e} expected"]


def flipped(folder, name, tensor_of, at):
    """A copy of the folder with another bit in element `at` of the tensor that tensor_of() finds in the first file of this name."""
    damaged = folder.with_name(f"{folder.name}-damaged")
    shutil.copytree(folder, damaged)
    file = sorted(damaged.rglob(name))[0]
    contents = load(file)
    tensor_of(contents).detach().view(torch.int32)[at] ^= 1
    torch.save(contents, file)
    return damaged


# ---- Cases: {name: (ranks, work, *arguments)}. A work returns what differs and figures, or figures alone. With 0 ranks it runs in
# this process. DeepSpeed's converter leaves threads, and ranks are forks of this process, so it runs on a rank.

def attempt(work, *arguments):
    try:
        return work(*arguments)
    except Exception as error:
        traceback.print_exc()
        return error


def results_of(cases, logs):
    """Yields each case's name, and its result or its error."""
    for size in sorted({ranks for ranks, *_ in cases.values()}):
        jobs = {name: job for name, (ranks, *job) in cases.items() if ranks == size}
        if size == 0:
            yield from ((name, attempt(*job)) for name, job in jobs.items())
        else:
            yield from zip(jobs, jobs_on_ranks(size, logs / f"on-{size}", list(jobs.values())), strict=True)


def report(results):
    """Prints a line for each result, and returns how many fail."""
    failed = 0
    for name, result in results:
        wrong, figures = ([result], "") if isinstance(result, Exception) else ([], result) if isinstance(result, str) else result
        if wrong:
            figures = f"{len(wrong)} differences: {'; '.join(map(str, wrong[:8]))}"
        print(f"{'FAIL' if wrong else 'ok:'} {name}: {figures}", flush=True)
        failed += bool(wrong)
    return failed


def truths_of(cases, logs):
    """{name: result} of cases that must not fail."""
    truths = dict(results_of(cases, logs))
    failed = {name: truth for name, truth in truths.items() if isinstance(truth, Exception)}
    if failed:
        sys.exit(report(failed.items()))
    return truths


def check(what, cases, logs=pathlib.Path("logs")):
    """Ends the script: with 1 if a case fails, or if there is none."""
    failed = report(results_of(cases, logs))
    print(f"{what}: {len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or not cases)
