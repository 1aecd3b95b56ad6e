#!/usr/bin/env python3
"""ds_reshard against real DeepSpeed, Trainer and accelerate:

    reshard.py FOLDER_OF_EXECUTABLES

Saves checkpoints on 2 or 4 ranks, cuts them anew for other sizes and stages, and loads each by the unmodified load_checkpoint.
All state must be that of the run that saved, bit for bit, and the next three losses must be those of the run that went on
there. One line per case; exits 1 if any fails.
"""
import collections
import copy
import pathlib
import shutil
import subprocess
import sys

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator

import reshard_hf
from ranks import jobs_on_ranks
from reshard_files import there_and_back
from reshard_model import DTYPES, counters, live, make_engine, train

PROGRAM = pathlib.Path(sys.argv[1]) / "ds_reshard"
SAVED, CUT, LOGS = map(pathlib.Path, ("saved", "cut", "logs"))
CLIENT_STATE = {"epoch": 2, "nested": {"names": ["a", "b"], "sums": torch.arange(5.0)}}
STEPS = 3  # before the save, and again after it
# How far a loss may be off. Ranks sum gradients in another order. In half precision, that may round a weight the other way, which
# costs one rounding in a few of the 360 predictions that a loss is the mean of: less than a quarter of a rounding.
BOUND = {"fp32": 1e-6, "bf16": 2**-10, "fp16": 2**-13}

Run = collections.namedtuple("Run", "stage dtype more", defaults=[{}])
# A checkpoint SAVED/source, cut for `target`, and load(folder, *arguments, truth) on `dp` ranks.
Case = collections.namedtuple("Case", "name source dp target bound load arguments")

RUNS = {f"z{stage}-{dtype}": Run(stage, dtype) for stage in range(4) for dtype in BOUND}
RUNS |= {
    "z1-bf16-sums-fp32": Run(1, "bf16", {"data_types": {"grad_accum_dtype": "fp32"}}),
    "z2-fp32-round-robin": Run(2, "fp32", {"zero": {"round_robin_gradients": True}}),
    "z3-fp32-sub-groups": Run(3, "fp32", {"zero": {"sub_group_size": 150}}),
    "z2-fp32-sgd": Run(2, "fp32", {"optimizer": "sgd"}),
    "z1-fp32-adagrad": Run(1, "fp32", {"optimizer": "adagrad"}),
    "z2-bf16-lion": Run(2, "bf16", {"optimizer": "lion"}),
    "z2-bf16-muon": Run(2, "bf16", {"optimizer": "muon"}),
    "z0-fp32-named": Run(0, "fp32", {"optimizer": "named"}),
    "z3-fp32-nadam": Run(3, "fp32", {"optimizer": "nadam"}),
    "z2-fp32-asgd": Run(2, "fp32", {"optimizer": "asgd"}),
    "z2-bf16-amsgrad": Run(2, "bf16", {"optimizer": "amsgrad"}),
}
CHANGES = [(f"z{old}-{dtype}", new, 3) for dtype in ("fp32", "bf16") for old, new in ((3, 1), (1, 3), (2, 3), (1, 2))]
CHANGES += [("z0-bf16", 1, 3), ("z0-fp16", 2, 3), ("z0-fp32-named", 1, 3), ("z0-fp32-named", 3, 3)]
CHANGES += [("z1-fp32", 0, 3), ("z3-fp32", 0, 3)]
ON_FOUR = ["z0-fp32", "z1-fp32", "z1-bf16-sums-fp32", "z2-bf16", "z2-fp32-round-robin", "z3-fp16", "z3-fp32-sub-groups"]
REFUSED = {
    ("z0-fp32", "zero=1"): "DeepSpeed does not record which at ZeRO 0",  # three vectors of one shape, and no names
    ("z1-bf16", "zero=0"): "depends on the next job's optimizer",
}
PRECISIONS = [(f"z{stage}-{old}", new)
              for stage in (1, 2, 3) for old, new in (("bf16", "fp32"), ("bf16", "fp16"), ("fp32", "bf16"))]
BOUND_OF_PRECISIONS = 2**-8  # all logits are rounded otherwise: one rounding of bf16, relative
HF = [(kind, stage) for kind in ("trainer", "accelerate") for stage in (1, 2, 3)]


def sizes(run):
    if run.stage == 0:
        return 3, 4
    if run.more:
        return 3,
    return ((3, 5), (1, 4))[(run.stage + list(BOUND).index(run.dtype)) % 2]


def cases():
    """Every checkpoint on other sizes; changes of stage and precision; LoRA in Hugging Face's loops. Stages and precisions take
    turns at the sizes."""
    for name, run in RUNS.items():
        for dp in sizes(run):
            yield Case(f"{name} on {dp}", name, dp, f"dp={dp}", BOUND[run.dtype], load, (run,))
    for name, new, dp in CHANGES:
        dtype = RUNS[name].dtype
        # Their FP16_UnfusedOptimizer of ZeRO 0 divides gradients by a loss scale that they don't have, so it goes on differently.
        bound = float("inf") if name == "z0-fp16" else BOUND[dtype]
        yield Case(f"{name} as ZeRO {new} on {dp}", name, dp, f"dp={dp},zero={new}", bound, load, (Run(new, dtype),))
    for name, dtype in PRECISIONS:
        stage = RUNS[name].stage
        yield Case(f"{name} as {dtype} on 3", name, 3, f"dp=3,dtype={dtype}", BOUND_OF_PRECISIONS, load, (Run(stage, dtype),))
    for kind, stage in HF:
        changes = {1: (3,), 2: (2, 3), 3: (3, 1)}[stage]
        for new in changes:
            # One of the two goes on on 1, the other on 3.
            dp = 1 if (stage + new == 4) == (kind == "trainer") else 3
            yield Case(f"{kind}, ZeRO {stage} as {new} on {dp}", f"{kind}-z{stage}", dp, f"dp={dp},zero={new}", 1e-6, load_hf, (kind, new))


# ---- On the ranks

def save(folder, run, goes_on=True):
    """The truth: all state at the save, and the losses and counters of the steps after it."""
    engine = make_engine(run.stage, run.dtype, **copy.deepcopy(run.more))
    train(engine, 0, STEPS)
    engine.module.counts += 100
    engine.save_checkpoint(str(folder), client_state=CLIENT_STATE)
    truth = {"state": live(engine), "dtype": DTYPES[run.dtype]}
    if goes_on:
        truth |= {"losses": train(engine, STEPS, STEPS), "later": counters(engine)}
    engine.destroy()
    return truth


def differences(a, b):
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            yield f"{name} is only in what was {'saved' if name in a else 'loaded'}"
        elif a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            yield f"{name} is {b[name].dtype} {list(b[name].shape)}, not {a[name].dtype} {list(a[name].shape)}"
        elif not torch.equal(a[name].flatten().view(torch.uint8), b[name].flatten().view(torch.uint8)):
            yield f"{name} has other bits"


def in_precision(state, dtype):
    """What a run in `dtype` holds with these masters: weights rounded from them, and its own loss scale."""
    cast = {name: state.get(f"{name.removesuffix('weight')}fp32", value).to(DTYPES[dtype])
            for name, value in state.items() if name.endswith(" weight")}
    return state | cast | {"scale": torch.tensor(256.0 if dtype == "fp16" else 1.0)}


def furthest(losses, expected):
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


def load(folder, run, truth):
    """What differs, the number of tensors, and how far the losses are off, of a job that resumes from `folder`."""
    engine = make_engine(run.stage, run.dtype, seed=2, **copy.deepcopy(run.more))
    path, client_state = engine.load_checkpoint(str(folder))
    wrong = [] if path else ["not loaded"]
    changes = DTYPES[run.dtype] != truth["dtype"]
    wrong += differences(in_precision(truth["state"], run.dtype) if changes else truth["state"], live(engine))
    if client_state["epoch"] != 2 or client_state["nested"]["names"] != ["a", "b"]:
        wrong.append(f"client state {client_state}")
    off = furthest(train(engine, STEPS, STEPS), truth["losses"])
    later = counters(engine)
    if changes:
        later["scale"] = truth["later"]["scale"]
    wrong += (f"{difference} after {STEPS} steps more" for difference in differences(truth["later"], later))
    engine.destroy()
    return wrong, len(truth["state"]), off


def save_hf(folder, kind, stage):
    return {"losses": getattr(reshard_hf, f"with_{kind}")(folder, stage)[STEPS:]}


def load_hf(folder, kind, stage, truth):
    losses = getattr(reshard_hf, f"with_{kind}")(folder / "again", stage, resume=folder)
    return [], 0, furthest(losses, truth["losses"])


# ---- Here

def checkpoint(name):
    """The folder that has `latest`, and the tag's folder in it."""
    folder = SAVED / name / "checkpoint-3" if name.startswith("trainer") else SAVED / name
    return folder, folder / (folder / "latest").read_text()


def reshard(source, output, target):
    done = subprocess.run([PROGRAM, "--input_folder", source, "--output_folder", output, "--target", target],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ds_reshard --target {target}: {done.stdout[-500:]}{done.stderr[-1500:]}")


class Report:
    def __init__(self):
        self.failed = self.passed = 0

    def __call__(self, name, wrong, figures=""):
        if wrong:
            print(f"FAIL {name}: {len(wrong)} differences: {'; '.join(map(str, wrong[:6]))}", flush=True)
            self.failed += 1
        else:
            print(f"ok: {name}: {figures}", flush=True)
            self.passed += 1

    def loaded(self, case, result):
        """`result`: an error, or what differs, the number of tensors, and how far the losses are off."""
        if isinstance(result, Exception):
            return self(case.name, [result])
        wrong, tensors, off = result
        if not off <= case.bound:
            wrong = [*wrong, f"losses are {off:.1e} off, at most {case.bound:.1e} expected"]
        return self(case.name, wrong, f"{f'{tensors} tensors are equal, ' if tensors else ''}losses {off:.1e} off")


def save_all(report):
    """{name: truth} of what could be saved."""
    jobs = {name: (save, SAVED / name, run) for name, run in RUNS.items()}
    jobs |= {f"{kind}-z{stage}": (save_hf, SAVED / f"{kind}-z{stage}", kind, stage) for kind, stage in HF}
    truths = dict(zip(jobs, jobs_on_ranks(2, LOGS, list(jobs.values())), strict=True))
    four = [(save, SAVED / f"{name}-dp4", RUNS[name], False) for name in ON_FOUR]
    truths |= {f"{name}-dp4": truth for name, truth in zip(ON_FOUR, jobs_on_ranks(4, LOGS / "saves", four), strict=True)}
    for name, truth in truths.items():
        if isinstance(truth, Exception):
            report(f"saving {name}", [truth])
    return {name: truth for name, truth in truths.items() if not isinstance(truth, Exception)}


def load_all(size, chosen, truths, report):
    """Cuts the sources of the cases for `size` ranks, and loads them there."""
    cut, jobs = [], []
    for case in chosen:
        output = CUT / case.name.replace(" ", "-")
        try:
            tag = checkpoint(case.source)[1]
            reshard(tag, output / tag.name, case.target)
            jobs.append((case.load, output, *case.arguments, truths[case.source]))
            cut.append(case)
        except (RuntimeError, OSError, KeyError) as error:
            report(case.name, [error])
    for case, result in zip(cut, jobs_on_ranks(size, LOGS, jobs), strict=True):
        report.loaded(case, result)


def refuses(source, target, message, report):
    """Refuses by `message`, and leaves nothing."""
    output = CUT / "refused" / "global_step3"
    try:
        reshard(checkpoint(source)[1], output, target)
        said = "it is not"
    except RuntimeError as error:
        said = str(error)
    report(f"{source} as {target} is refused", [] if message in said and not output.parent.exists() else [said], message)


def damaged_is_seen(truths, report):
    """One element of one moment by one bit: what all of the above relies on."""
    folder, moment = CUT / "damaged", "up.weight exp_avg"
    shutil.copytree(CUT / "z1-fp32-on-1", folder)
    file = next(folder.rglob("*_optim_states.pt"))
    contents = torch.load(file, weights_only=False)
    contents["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"].view(torch.int32)[-300] ^= 1
    torch.save(contents, file)
    result, = jobs_on_ranks(1, LOGS / "damaged", [(load, folder, RUNS["z1-fp32"], truths["z1-fp32"])])
    expected = [f"{moment} has other bits"]
    report("a flipped bit is seen", [] if not isinstance(result, Exception) and result[0] == expected else [result], expected[0])


def main():
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on most CPUs, and these models are tiny
    report, all_cases = Report(), list(cases())
    truths = save_all(report)
    for size in (1, 3, 4, 5):
        load_all(size, [case for case in all_cases if case.dp == size], truths, report)
    damaged_is_seen(truths, report)
    for (source, target), message in REFUSED.items():
        refuses(source, target, message, report)
    for name in ON_FOUR:
        tag = checkpoint(f"{name}-dp4")[1]
        three, four = (CUT / f"{name}-4-to-{way}" / tag.name for way in ("3", "3-to-4"))
        reshard(tag, three, "dp=3")
        reshard(three, four, "dp=4")
        wrong, tensors = there_and_back(tag, four)
        report(f"{name} from 4 ranks to 3 and back", wrong, f"{tensors} tensors are equal")
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(report.failed > 0 or report.passed < len(all_cases))


if __name__ == "__main__":
    main()
