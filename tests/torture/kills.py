#!/usr/bin/env python3
"""A kill at any moment is made up for by the next run. Each tool is killed (SIGKILL, by strace) before each of its calls that change
the disk, once where its output is new and once where it replaces an earlier one. Every fourth time the second run is killed too. Then
it runs without a kill: it must end well, with the files of a run that was left alone, and nothing else beside them.

    kills.py FOLDER_OF_EXECUTABLES [--every N] [--only TOOL]    at every call, some minutes; or every N-th, but three of a tool at least
"""
import argparse
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = ("mkdir mkdirat rename renameat renameat2 unlink unlinkat rmdir link linkat fsync syncfs pwrite64 write fallocate ftruncate "
         "sendfile copy_file_range").split()
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SKIPPED = 77

parser = argparse.ArgumentParser()
parser.add_argument("bin", type=Path)
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--only", default="")
args = parser.parse_args()
BIN = args.bin.resolve()


def run(command, folder, before=()):
    """Returns the exit status, negative after a signal, and what the command printed."""
    done = subprocess.run([*before, str(BIN / command[0]), *command[1:]], cwd=folder, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout


def run_well(command, folder):
    status, printed = run(command, folder)
    if status != 0:
        raise SystemExit(f"FAIL: {' '.join(command)}: exit code {status}: {printed}")


def calls_of(command, folder):
    """Runs the command, and returns its calls, each with its number among those of the name, from 1 on, as strace counts them."""
    trace = folder / "trace"
    run(command, folder, ("strace", "-f", "-qq", "-o", trace, "-e", "trace=" + ",".join("?" + call for call in CALLS)))
    made = collections.Counter(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M))
    return [(call, at) for call in CALLS for at in range(1, made[call] + 1)]


def killed_at(command, folder, call, at):
    """Returns whether the command came to this call and so was killed: strace counts those of each thread by themselves."""
    trace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}")
    status, printed = run(command, folder, trace)
    if status not in (0, -signal.SIGKILL, 128 + signal.SIGKILL):
        raise SystemExit(f"FAIL: {' '.join(command)}: exit code {status}, to be killed before {call} {at}: {printed}")
    return status != 0


def tree(folder):
    """The contents by name. Empty folders count."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def unpack(name, to):
    subprocess.run(["tar", "xf", FIXTURES / name, "-C", to], check=True)
    return to / Path(name).name.removesuffix(".tar.xz") / "checkpoint"


def prepare(folder):
    """Makes the sources, named in SCENARIOS."""
    shutil.copytree(unpack("deepspeed/z1-bf16-dp2.tar.xz", folder), folder / "zero1")
    shutil.copytree(unpack("megatron/z1-bf16-tp2pp2dp1.tar.xz", folder), folder / "gpt")
    next(path for path in (folder / "zero1").iterdir() if path.is_dir()).rename(folder / "zero1" / "tag")
    for name in ("trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"):
        (folder / "zero1" / name).write_text(name)
    for number, text in enumerate(("a\nb\n", "a\nb\nc\n")):
        (folder / f"{number}.txt").write_text(text)
        rows = "".join(f"{i},{i},{5 - i / 10 - number},1e-3,1,1,1,1\n" for i in range(1, 9))
        header = "iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_ms\n"
        (folder / f"run{number}").mkdir()
        (folder / f"run{number}" / "loss.csv").write_text(header + rows)
    run_well(("hf_convert", "export", "gpt", "hf"), folder)
    (folder / "hf" / "tokenizer.json").write_text("{}")
    for scratch in folder.glob("z1-*"):
        shutil.rmtree(scratch)


GPT = "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8 --mock-data --vocab-size 17 " \
      "--micro-batch-size 1 --global-batch-size 1 --lr 1e-3 --lr-decay-iters 9 --eval-iters 0 --local-ranks 1 --zero-stage 1 --save-interval 1 " \
      "--save-total-limit 1 --load out/save --save out/save --train-iters "
# The tool, the command whose output is replaced, the command that is killed, and the next one, if it is another. Outputs are in out/.
SCENARIOS = (
    ("ds_to_universal", "--input_folder zero1/tag --output_folder out/u --inject_missing_state",
     "--input_folder zero1/tag --output_folder out/u --inject_missing_state --keep_temp_folder"),
    ("zero_to_fp32", "gpt out/w --max_shard_size 20KB", "gpt out/w"),
    ("zero_to_fp32", "gpt out/w", "gpt out/w --max_shard_size 20KB"),
    ("ds_reshard", "--input_folder zero1/tag --output_folder out/r/tag --target dp=3", "--input_folder zero1/tag --output_folder out/r/tag --target dp=1"),
    ("hf_convert", "export gpt out/h --max-shard-size 20KB", "export gpt out/h"),
    ("hf_convert", "import hf out/i", "import hf out/i"),
    ("preprocess_data", "--input 0.txt --output-prefix out/p --tokenizer-type ByteLevelTokenizer --documents line",
     "--input 1.txt --output-prefix out/p --tokenizer-type ByteLevelTokenizer --documents line"),
    ("report", "--output out/r.html run0", "--output out/r.html run1"),
    ("plot_loss", "--output out/p.svg run0/loss.csv", "--output out/p.svg run1/loss.csv"),
    ("pretrain_gpt", GPT + "1", GPT + "3", GPT + "4"),  # old tags go after a save
)


def torture(tool, earlier, command, next_command, folder, every):
    """Returns how many kills there were."""
    out, begin = folder / "out", folder / "begin"

    def begin_with(content):
        shutil.rmtree(out)
        shutil.copytree(content, out, copy_function=shutil.copy)  # like cp -r: the files have other times

    if earlier:
        run_well((tool, *earlier.split()), folder)
    out.rename(begin)
    shutil.copytree(begin, out)
    for alone in (command, next_command):
        run_well((tool, *alone.split()), folder)
    expected = tree(out)
    begin_with(begin)
    kills = 0
    calls = calls_of((tool, *command.split()), folder)
    step = max(1, min(every, len(calls) // 3))
    for number, (call, at) in enumerate(calls[len(command) % step::step]):
        begin_with(begin)
        kills += killed_at((tool, *command.split()), folder, call, at)
        if number % 4 == 3:
            kills += killed_at((tool, *command.split()), folder, ("fsync", "unlink", "rename")[at % 3], 1 + at * 7 % 11)
        run_well((tool, *next_command.split()), folder)
        now = tree(out)
        wrong = [name for name in sorted(now.keys() | expected.keys()) if now.get(name) != expected.get(name)]
        if wrong:
            raise SystemExit(f"FAIL: {tool} {command}: after a kill before {call} {at}, other than without: {wrong}")
    shutil.rmtree(out)
    shutil.rmtree(begin)
    out.mkdir()
    return kills


if not shutil.which("strace") or subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], stderr=subprocess.DEVNULL).returncode != 0:
    print("left out: strace is missing (apt-get install strace), or may not trace")
    sys.exit(SKIPPED)
total = 0
memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where nobody waits for a disk
with tempfile.TemporaryDirectory(prefix="anymesh-kills.", dir=memory) as scratch:
    folder = Path(scratch)
    prepare(folder)
    (folder / "out").mkdir()
    for tool, first, second, *third in SCENARIOS:
        if args.only not in tool:
            continue
        for earlier in ("", first):
            kills = torture(tool, earlier, second, *(third or [second]), folder, args.every)
            print(f"ok: {tool}, {'which replaces an output' if earlier else 'whose output is new'}: {kills} kills", flush=True)
            total += kills
print(f"{total} kills, 0 without recovery")
