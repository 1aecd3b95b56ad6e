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
import re

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator

import checks
import reshard_hf
from checks import DTYPES, differences, flipped, furthest, our, refusal, tensor_differences, too_far
from reshard_model import counters, live, make_engine, train

SAVED, CUT, LOGS = map(pathlib.Path, ("saved", "cut", "logs"))
CLIENT_STATE = {"epoch": 2, "nested": {"names": ["a", "b"], "sums": torch.arange(5.0)}}
STEPS = 3  # before the save, and again after it
# How far a loss may be off. Ranks sum gradients in another order. In half precision, that may round a weight the other way, which
# costs one rounding in a few of the 360 predictions that a loss is the mean of: less than a quarter of a rounding.
BOUND = {"fp32": 1e-6, "bf16": 2**-10, "fp16": 2**-13}

Run = collections.namedtuple("Run", "stage dtype more", defaults=[{}])
# A checkpoint SAVED/source, cut for `target`, and load(folder, *arguments, bound, truth) on `dp` ranks.
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


def in_precision(state, dtype):
    """What a run in `dtype` holds with these masters: weights rounded from them, and its own loss scale."""
    cast = {name: state.get(f"{name.removesuffix('weight')}fp32", value).to(DTYPES[dtype])
            for name, value in state.items() if name.endswith(" weight")}
    return state | cast | {"scale": torch.tensor(256.0 if dtype == "fp16" else 1.0)}


def load(folder, run, bound, truth):
    """What differs, the number of tensors, and how far the losses are off, of a job that resumes from `folder`."""
    engine = make_engine(run.stage, run.dtype, seed=2, **copy.deepcopy(run.more))
    path, client_state = engine.load_checkpoint(str(folder))
    wrong = [] if path else ["not loaded"]
    changes = DTYPES[run.dtype] != truth["dtype"]
    wrong += tensor_differences(live(engine), in_precision(truth["state"], run.dtype) if changes else truth["state"])
    if client_state["epoch"] != 2 or client_state["nested"]["names"] != ["a", "b"]:
        wrong.append(f"client state {client_state}")
    off = furthest(train(engine, STEPS, STEPS), truth["losses"])
    later = counters(engine)
    if changes:
        later["scale"] = truth["later"]["scale"]
    wrong += tensor_differences(later, truth["later"], f"{STEPS} steps later")
    engine.destroy()
    return wrong + too_far("losses", off, bound), f"{len(truth['state'])} tensors are equal, losses {off:.1e} off"


def save_hf(folder, kind, stage):
    return {"losses": getattr(reshard_hf, f"with_{kind}")(folder, stage)[STEPS:]}


def load_hf(folder, kind, stage, bound, truth):
    off = furthest(getattr(reshard_hf, f"with_{kind}")(folder / "again", stage, resume=folder), truth["losses"])
    return too_far("losses", off, bound), f"losses {off:.1e} off"


# ---- Here

def checkpoint(name):
    """The folder that has `latest`, and the tag's folder in it."""
    folder = SAVED / name / "checkpoint-3" if name.startswith("trainer") else SAVED / name
    return folder, folder / (folder / "latest").read_text()


def reshard(source, output, target, run=our):
    return run("ds_reshard", "--input_folder", source, "--output_folder", output, "--target", target)


def cut(case):
    tag, output = checkpoint(case.source)[1], CUT / case.name.replace(" ", "-")
    reshard(tag, output / tag.name, case.target)
    return output


def refuses(source, target, message):
    """Refuses by `message`, and leaves nothing."""
    output = CUT / "refused" / "global_step3"
    said = reshard(checkpoint(source)[1], output, target, run=refusal)
    return [] if message in said and not output.parent.exists() else [said], message


def damaged_is_seen(truth):
    """One element of one moment by one bit: what all of the above relies on."""
    folder = flipped(CUT / "z1-fp32-on-1", "*_optim_states.pt",
                     lambda file: file["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"], -300)
    wrong, _ = load(folder, RUNS["z1-fp32"], BOUND["fp32"], truth)
    expected = "['up.weight exp_avg']: 1 of 912 bytes"
    return [] if wrong == [expected] else [wrong], expected


def goes_on_here(name):
    """A Trainer's adapter, imported beside its base model: weights, moments and steps of what DeepSpeed saved, bit for bit. Cut for
    tp 2 x pp 2, it is exported as before."""
    folder, tag = checkpoint(name)
    ours, base = CUT / f"{name}-here", CUT / f"{name}-base"
    reshard_hf.llama().unload().save_pretrained(base)
    our("hf_convert", "import", base, ours, "--adapter", folder)
    our("ds_to_universal", "--input_folder", tag, "--output_folder", CUT / f"{name}-universal")
    theirs = {re.sub(r"base_model\.model\.model\.layers\.(\d+)\.(.*)\.default\.weight",
                     lambda m: f"{int(m[1]) + 2}.{m[2].replace('self_attn', 'self_attention')}.weight", f.parent.name) + f" {f.name}": f
              for f in (CUT / f"{name}-universal" / "zero").glob("*lora*/*.pt")}
    tensor = lambda file: value["param"] if isinstance(value := checks.load(file), dict) else torch.as_tensor(value)
    made = {f"{f.parent.name} {f.name}": f for f in (ours / "global_step3_universal" / "zero").glob("*lora*/*.pt")}
    wrong = list(tensor_differences(*({key: tensor(file) for key, file in files.items()} for files in (made, theirs))))
    cut = CUT / f"{name}-tp2-pp2"
    reshard(ours / "global_step3_universal", cut / "global_step3", "tp=2,pp=2,zero=1")
    for way in (["--merge"], ["--adapter", "base"]):
        exported = []
        for source in (ours, cut):
            our("hf_convert", "export", source, out := source.with_name(f"{source.name}{way[0]}"), *way)
            exported.append(next(out.glob("*.safetensors")).read_bytes())
        if exported[0] != exported[1]:
            wrong.append(f"{way[0]} differs from tp 2 x pp 2")
    return wrong, f"{len(made)} states are equal"


def without_padding(flat, shapes, rank, ranks):
    """The elements of parameters in a rank's flat partition at ZeRO 3. DeepSpeed leaves its padding as it finds the memory."""
    kept, start = [], 0
    for shape in shapes:
        share = -(-shape.numel() // ranks)
        here = max(0, min(share, shape.numel() - rank * share))
        kept.append(flat[start:start + here])
        start += share
    assert start == flat.numel(), f"{start} elements in the shapes, {flat.numel()} in the partition"
    return torch.cat(kept)


def files_of(tag, ranks):
    """{file: what it holds}, padding aside."""
    files = {f.name: checks.load(f) for f in sorted(tag.glob("*.pt"))}
    for name, contents in files.items():
        rank = int((re.search(r"pp_rank_(\d+)", name) or [0, 0])[1])
        model = files.get(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        if model and "optim" in name:
            state = contents["optimizer_state_dict"]
            for i, group in enumerate(model["param_shapes"]):
                shapes, moments = list(group.values()), state["optimizer_state_dict"]["state"][i]
                state["fp32_flat_groups"][i] = without_padding(state["fp32_flat_groups"][i], shapes, rank, ranks)
                moments |= {key: without_padding(value, shapes, rank, ranks)
                            for key, value in moments.items() if torch.is_tensor(value) and value.dim() > 0}
        elif model:
            frozen = contents["frozen_param_fragments"]
            frozen |= {key: without_padding(flat, [contents["frozen_param_shapes"][key]], rank, ranks) for key, flat in frozen.items()}
    return files


# The one key that may differ, which no load reads. BF16_Optimizer counts all padding of a group to the last rank, also where the
# padding exceeds that rank's partition, and DeepSpeed's own converter then fails. ds_reshard counts each rank's own, as
# DeepSpeedZeroOptimizer does.
COUNTS_PADDING = re.compile(r"\['bf16_.*\['group_paddings'\]\[\d+\]: ")


def there_and_back(name):
    """A checkpoint of 4 ranks, cut for 3 and again for 4, against itself: every key, type and bit of every file."""
    tag = checkpoint(f"{name}-dp4")[1]
    three, four = (CUT / f"{name}-4-to-{way}" / tag.name for way in ("3", "3-to-4"))
    reshard(tag, three, "dp=3")
    reshard(three, four, "dp=4")
    files = files_of(tag, 4)
    wrong = [line for line in differences(files_of(four, 4), files) if not COUNTS_PADDING.match(line)]
    return wrong, f"{len(files)} files are equal"


def main():
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on most CPUs, and these models are tiny
    jobs = {name: (2, save, SAVED / name, run) for name, run in RUNS.items()}
    jobs |= {f"{kind}-z{stage}": (2, save_hf, SAVED / f"{kind}-z{stage}", kind, stage) for kind, stage in HF}
    jobs |= {f"{name}-dp4": (4, save, SAVED / f"{name}-dp4", RUNS[name], False) for name in ON_FOUR}
    truths = checks.truths_of(jobs, LOGS / "saves")
    jobs = {case.name: (case.dp, case.load, cut(case), *case.arguments, case.bound, truths[case.source]) for case in cases()}
    jobs["a flipped bit is seen"] = (1, damaged_is_seen, truths["z1-fp32"])
    jobs |= {f"{source} as {target} is refused": (0, refuses, source, target, message)
             for (source, target), message in REFUSED.items()}
    jobs |= {f"trainer-z{stage}, its adapter here": (0, goes_on_here, f"trainer-z{stage}") for stage in (1, 2, 3)}
    jobs |= {f"{name} from 4 ranks to 3 and back": (0, there_and_back, name) for name in ON_FOUR}
    checks.check("ds_reshard", jobs, LOGS)


if __name__ == "__main__":
    main()
