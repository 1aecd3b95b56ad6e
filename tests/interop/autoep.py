#!/usr/bin/env python3
"""Mixtures of experts in pretrain_gpt and our tools, against real DeepSpeed's AutoEP and its older MoE:

    autoep.py FOLDER_OF_EXECUTABLES

AutoEP trains a model with pretrain_gpt's names. Our universal folder must be that of DeepSpeed's own converter, byte for byte.
The unmodified load_checkpoint must load ours where other numbers of ranks share the experts: all state is that of the run that
saved, bit for bit, and the next three losses are those of the run that went on, up to rounding. pretrain_gpt must load the
ordinary folder on other meshes, with the same state and logits. Checkpoints of pretrain_gpt go the same ways back, and ordinary
ones also to as many ranks of AutoEP. One line per case; exits 1 if any fails.

DeepSpeed's converter takes neither experts that tp cuts nor its own older MoE with experts on several ranks; ours takes both.
"""
import collections
import pathlib

import torch

import autoep_model as model
import checks
import compare
from checks import DTYPES, expect, our, tensor_differences, too_far

SAVED, OLDER, OWN, OURS, THEIRS, MOVED, LOGS = map(
    pathlib.Path, ("saved", "older", "own", "ours", "theirs", "moved", "logs"))
TAG, STEPS = "global_step3", 3  # before the save, and again after it
BOUND = {"fp32": 1e-6, "bf16": 2**-8}  # of the losses, relative: ranks sum in another order, in half precision by one rounding
OF_LOGITS = 1e-5

# `ep` of `dp` ranks share the experts. Ranks with the same experts are ep apart or, by DeepSpeed's
# use_data_before_expert_parallelism, adjacent.
Run = collections.namedtuple("Run", "stage dtype ep dp adjacent", defaults=[False])
Mesh = collections.namedtuple("Mesh", "tp pp dp stage ep more", defaults=[()])
WHOLE = ("--expert-tensor-parallel-size", 1, "--sequence-parallel")  # tp does not cut experts

# Trained by AutoEP. Each ep comes at two stages or three.
RUNS = {
    "z1": Run(1, "fp32", 2, 2),
    "z1-ep4": Run(1, "fp32", 4, 4),
    "z1-adjacent": Run(1, "fp32", 2, 4, True),
    "z1-bf16": Run(1, "bf16", 2, 4),
    "z2-edp2": Run(2, "fp32", 2, 4),
    "z2-ep1": Run(2, "fp32", 1, 2),
    "z3-edp2": Run(3, "fp32", 2, 4),
    "z3-ep4": Run(3, "fp32", 4, 4),
    "z3-ep1": Run(3, "fp32", 1, 2),
    "z3-adjacent": Run(3, "fp32", 2, 4, True),
    "z3-bf16": Run(3, "bf16", 2, 2),
}
# DeepSpeed loads these from our universal folder, at this ep and dp.
LOADS = [("z1", 1, 1), ("z1-ep4", 2, 2), ("z1-bf16", 1, 1), ("z1-adjacent", 4, 4), ("z2-edp2", 4, 4), ("z2-ep1", 2, 4),
         ("z3-edp2", 1, 1), ("z3-ep4", 2, 4), ("z3-ep1", 2, 2), ("z3-bf16", 4, 4), ("z3-adjacent", 1, 2)]
# pretrain_gpt loads these as they are, on this mesh.
MOVES = [("z1", Mesh(2, 1, 2, 3, 2)), ("z1-ep4", Mesh(2, 2, 1, 1, 1)), ("z1-bf16", Mesh(2, 1, 2, 2, 2, ("--bf16",))),
         ("z1-adjacent", Mesh(1, 1, 4, 1, 2)), ("z2-edp2", Mesh(2, 1, 2, 1, 4, WHOLE)), ("z2-ep1", Mesh(1, 2, 2, 0, 1)),
         ("z3-edp2", Mesh(1, 1, 4, 3, 2)), ("z3-ep4", Mesh(1, 3, 1, 0, 1)), ("z3-ep1", Mesh(1, 1, 4, 2, 4)),
         ("z3-adjacent", Mesh(2, 1, 1, 0, 1)), ("z3-bf16", Mesh(1, 1, 4, 1, 4, ("--bf16",)))]
# ds_reshard cuts these for this stage, ep and dp, and DeepSpeed's ordinary load takes them.
CUTS = [("z1", 1, 4, 4), ("z1-ep4", 3, 2, 4), ("z1-bf16", 2, 1, 2), ("z2-ep1", 1, 2, 2), ("z3-edp2", 3, 4, 4),
        ("z3-adjacent", 1, 2, 2), ("z1-adjacent", 2, 2, 4)]
# Trained by pretrain_gpt, and the ep and dp where DeepSpeed goes on.
OWN_RUNS = {
    "z0": (Mesh(1, 1, 4, 0, 2), 4, 4),
    "z1": (Mesh(1, 1, 4, 1, 2), 4, 4),
    "z1-ep4": (Mesh(1, 1, 4, 1, 4), 1, 1),
    "z1-bf16": (Mesh(1, 1, 4, 1, 2, ("--bf16",)), 4, 4),
    "z2": (Mesh(1, 1, 4, 2, 2), 1, 1),
    "z3": (Mesh(1, 1, 4, 3, 2), 4, 4),
    "z3-ep4": (Mesh(1, 1, 4, 3, 4), 2, 2),
    "z1-pp2": (Mesh(1, 2, 2, 1, 2), 4, 4),
    "z3-tp2": (Mesh(2, 1, 2, 3, 2), 1, 1),
    "z1-tp2-whole": (Mesh(2, 1, 2, 1, 4, WHOLE), 2, 2),
    "z2-tp2-whole": (Mesh(2, 1, 2, 2, 2, WHOLE), 4, 4),
}
# DeepSpeed loads these as they are, on as many ranks.
ORDINARY = ["z0", "z1-ep4", "z1-bf16", "z2", "z3"]
OLDER_RUNS = {"z1-ep4": Run(1, "fp32", 4, 4), "z1-adjacent": Run(1, "fp32", 2, 4, True), "z2-bf16": Run(2, "bf16", 2, 4)}


# ---- On the ranks

def save(folder, run, older=False):
    """The truth: all state at the save, the logits, and the losses of the steps after it."""
    engine = model.make_engine(run.stage, run.dtype, run.ep, older=older, adjacent=run.adjacent)
    model.train(engine, 0, STEPS)
    engine.save_checkpoint(str(folder))
    truth = {"state": model.whole(engine, run.ep)}
    if not older:
        truth |= {"logits": model.logits_of(engine), "losses": model.train(engine, STEPS, STEPS)}
    engine.destroy()
    return truth


def load(folder, run, truth, universal=True):
    """Returns what differs, and figures. `truth` has the losses or the logits, by where it comes from."""
    engine = model.make_engine(run.stage, run.dtype, run.ep, seed=2, universal=universal, adjacent=run.adjacent)
    path, _ = engine.load_checkpoint(str(folder))
    model.part_steps(engine)
    found = model.whole(engine, run.ep)
    wrong = [] if path else ["not loaded"]
    wrong += tensor_differences({key: found[key] for key in truth["state"]}, truth["state"])
    figures = f"{len(truth['state'])} tensors are equal"
    if "losses" in truth:
        off = checks.furthest(model.train(engine, STEPS, STEPS), truth["losses"])
        wrong += too_far("losses", off, BOUND[run.dtype])
        figures += f", losses {off:.1e} off"
    elif run.dtype == "fp32":
        off = (model.logits_of(engine) - truth["logits"]).abs().max().item()
        wrong += too_far("logits", off, OF_LOGITS)
        figures += f", logits {off:.1e} off"
    engine.destroy()
    return wrong, figures


def undo_rewriting(tag, converted):
    """Their converter writes two entries of universal_checkpoint_info anew, which nothing reads afterwards: a pattern for the
    same names, and facts of the layers, fewer below ZeRO 3. Puts back those of the source."""
    for file in converted.glob("*mp_rank_*_model_states.pt"):
        contents, source = checks.load(file), checks.load(tag / file.name)
        info, before = (c["universal_checkpoint_info"] for c in (contents, source))
        pattern = (".*" if file.name.startswith("zero_pp_rank_") else "") + r"\.experts\.w[123]$"
        expect(info["expert_parameter_patterns"] == [pattern], f"patterns {info['expert_parameter_patterns']}")
        for entry, original in zip(info["ds_autoep_layers"], source["ds_autoep_layers"], strict=True):
            expect(len(entry) >= 6 and entry.items() <= original.items(), f"layer {entry}")
        for key in ("expert_parameter_patterns", "ds_autoep_layers"):
            if key in before:
                info[key] = before[key]
            else:
                del info[key]
        torch.save(contents, file)


def convert(saved, name, guessed):
    """Returns what differs, and how many files do not. `guessed`: the source does not say along which dim a weight is cut. Ours
    knows Megatron's names, theirs does not: see KNOWN in compare.py."""
    tag, mine, other = saved / name / TAG, *(who / saved.name / name / f"{TAG}_universal" for who in (OURS, THEIRS))
    compare.our_converter(tag, mine)
    compare.their_converter(tag, other)
    undo_rewriting(tag, other)
    wrong = list(compare.universal_differences(mine, other, cat_dim_differs=guessed))
    stacked = [f.parent.name for f in (mine / "zero").glob("*/fp32.pt") if checks.load(f).get("is_expert_param")]
    expect(len(stacked) == 6, f"experts: {stacked}")
    return wrong, f"{len(compare.files_in(other))} files are equal"


def refused(saved, name, message, *flags):
    """Checks that their converter fails here. Ours does not."""
    try:
        compare.their_converter(saved / name / TAG, THEIRS / "refused" / saved.name / name, *flags)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return [] if message in said else [said], f"theirs fails ({message})"
    return ["theirs converts it"], ""


def damage(truth):
    """Checks that a load and the comparison of folders see another bit in a moment of expert 5."""
    name, parameter = "z1", "4.mlp.experts.w2"
    damaged = checks.flipped(OURS / SAVED.name / name, f"{parameter}/exp_avg.pt", lambda file: file["param"], (5, 3, 7))
    wrong, _ = load(damaged, RUNS[name]._replace(ep=1, dp=1), truth)
    wrong += compare.universal_differences(damaged / f"{TAG}_universal", THEIRS / SAVED.name / name / f"{TAG}_universal",
                                           cat_dim_differs=True)
    said = f"1 of {4 * model.EXPERTS * model.HIDDEN * model.EXPERT_WIDE} bytes"
    expected = [f"['{parameter} exp_avg']: {said}", f"zero/{parameter}/exp_avg.pt['param']: {said}"]
    return [] if [line for line in wrong if "bytes" in line] == expected else [wrong], expected[0]


# ---- Here

def flags_of(mesh):
    return ["--tensor-model-parallel-size", mesh.tp, "--pipeline-model-parallel-size", mesh.pp, "--zero-stage", mesh.stage,
            "--expert-model-parallel-size", mesh.ep, *mesh.more]


def train_here(mesh, *flags):
    our("pretrain_gpt", "--local-ranks", mesh.tp * mesh.pp * mesh.dp, *model.FLAGS, *flags_of(mesh), "--mock-data",
        "--micro-batch-size", 1, "--global-batch-size", model.BATCH, "--train-iters", STEPS, "--lr", 1e-2, "--lr-decay-style",
        "constant", "--init-method-std", 0.2, "--eval-iters", 0, *flags)


def our_logits(folder, mesh=Mesh(1, 1, 1, 0, 1)):
    return checks.our_logits(
        model.some_tokens(), LOGS, "--local-ranks", mesh.tp * mesh.pp * mesh.dp, *model.FLAGS, *flags_of(mesh), "--mock-data",
        "--micro-batch-size", 1, "--global-batch-size", 4, "--train-iters", 1, "--lr", 1e-2, "--eval-iters", 0, "--load", folder)


def same_state(a, b):
    said = our("ckpt", "diff", a, b)
    expect(said.endswith(", 124 tensors compared, 0 differences\n"), said)  # 31 parameters, each with weights and three states


def move(name, mesh, truth):
    """Checks that pretrain_gpt loads it. It saves at once, too."""
    our("ckpt", "verify", SAVED / name)
    moved = MOVED / name / "-".join(map(str, mesh[:5]))
    train_here(mesh, "--load", SAVED / name, "--save", moved)
    same_state(SAVED / name, moved)
    if RUNS[name].dtype != "fp32":
        return [], "124 tensors are equal"
    logits = [our_logits(SAVED / name, mesh), our_logits(moved)]
    off = max((each - truth["logits"]).abs().max().item() for each in logits)
    return too_far("logits", off, OF_LOGITS), f"124 tensors are equal, logits {off:.1e} off"


def own(name):
    """Returns the truth of a folder that pretrain_gpt trained: the state in our universal folder, which `ckpt diff` compares with
    the source, and the logits here."""
    mesh, tag, universal = OWN_RUNS[name][0], OWN / name / TAG, OURS / OWN.name / name / f"{TAG}_universal"
    train_here(mesh, "--save", OWN / name)
    our("ckpt", "verify", tag)
    compare.our_converter(tag, universal)
    our("ckpt", "diff", tag, universal)
    dtype = DTYPES["bf16" if "--bf16" in mesh.more else "fp32"]
    state = {"steps": torch.tensor([STEPS, STEPS * model.BATCH, 0, float(STEPS)])}
    for parameter, states in compare.universal_parameters(universal).items():
        state[f"{parameter} weight"] = states["fp32"].detach().to(dtype)
        state |= {f"{parameter} {key}": value.detach() for key, value in states.items()}
    return {"state": state, "logits": our_logits(OWN / name)}


def exported(saved, name, truth):
    """Checks that our zero_to_fp32 exports the masters of the run."""
    output = MOVED / f"{saved.name}-{name}-fp32"
    our("zero_to_fp32", saved / name, output)
    weights = checks.load(output / "pytorch_model.bin", weights_only=True)
    expected = {key.removesuffix(" fp32"): value for key, value in truth["state"].items() if key.endswith(" fp32")}
    return list(tensor_differences(weights, expected, "zero_to_fp32")), f"{len(expected)} masters are equal"


def read_older(name, truth):
    """Checks that our tools read the older MoE's, each expert under its number among those of all ranks."""
    tag, universal = OLDER / name / TAG, OURS / OLDER.name / name / f"{TAG}_universal"
    our("ckpt", "verify", tag)
    said = our("ckpt", "inspect", tag)
    last = f"first.deepspeed_moe.experts.deepspeed_experts.{model.EXPERTS - 1}.2.weight "
    wrong = [] if last in said else [f"ckpt inspect does not name {last}"]
    compare.our_converter(tag, universal)
    our("ckpt", "diff", tag, universal)
    found = {f"{parameter} {key}": value.detach() for parameter, states in compare.universal_parameters(universal).items()
             for key, value in states.items()}
    expected = {key: value for key, value in truth["state"].items() if key.split(" ")[-1] in compare.STATES}
    wrong += tensor_differences(found, expected)
    more, figures = exported(OLDER, name, truth)
    return wrong + more, f"{len(found)} tensors and {figures}"


def cut(name, run):
    """Returns the folder of an AutoEP run, cut by ds_reshard for another mesh and stage."""
    folder = MOVED / "cut" / f"{name}-z{run.stage}-ep{run.ep}-dp{run.dp}"
    our("ds_reshard", "--input_folder", SAVED / name / TAG, "--output_folder", folder / TAG, "--target",
        f"dp={run.dp},ep={run.ep},zero={run.stage}")
    our("ckpt", "verify", folder / TAG)
    return folder


def not_cut(folder):
    """Checks that ds_reshard refuses the older MoE, and leaves nothing."""
    output = MOVED / "not-cut" / TAG
    said, message = (checks.refusal("ds_reshard", "--input_folder", folder, "--output_folder", output, "--target", "dp=2"),
                     "which ds_reshard does not cut")
    return [] if message in said and not output.parent.exists() else [said], message


def cases(truths, owns):
    found = {}
    for name, run in RUNS.items():
        found[f"AutoEP {name}: converted by both"] = (1, convert, SAVED, name, run.stage < 3)
        found[f"AutoEP {name}: exported"] = (0, exported, SAVED, name, truths[SAVED, name])
    for name in OWN_RUNS:
        mesh = OWN_RUNS[name][0]
        if mesh.stage == 0:
            found[f"own {name}: converted"] = (1, refused, OWN, name, "KeyError: 'optimizer_state_dict'")
        elif mesh.ep > mesh.dp:
            found[f"own {name}: converted"] = (1, refused, OWN, name, "is not divisible by AutoEP size", "--no_strict")
        elif mesh.tp > 1:
            found[f"own {name}: converted"] = (1, refused, OWN, name, "NotImplementedError", "--no_strict")
        else:
            found[f"own {name}: converted by both"] = (1, convert, OWN, name, False)
    for name in OLDER_RUNS:
        found[f"older MoE {name}: read"] = (0, read_older, name, truths[OLDER, name])
        found[f"older MoE {name}: converted"] = (1, refused, OLDER, name, "is invalid for input of size", "--inject_missing_state")
        found[f"older MoE {name}: ds_reshard"] = (0, not_cut, OLDER / name / TAG)
    for name, stage, ep, dp in CUTS:
        run = RUNS[name]._replace(stage=stage, ep=ep, dp=dp)
        found[f"AutoEP {name}, cut for ZeRO {stage}, ep {ep} of {dp} -> DeepSpeed as it is"] = (
            dp, load, cut(name, run), run, truths[SAVED, name], False)
    found["a flipped bit is seen"] = (1, damage, truths[SAVED, "z1"])
    for name, mesh in MOVES:
        found[f"AutoEP {name} -> pretrain_gpt tp {mesh.tp} pp {mesh.pp} dp {mesh.dp} ep {mesh.ep} ZeRO {mesh.stage}"] = (
            0, move, name, mesh, truths[SAVED, name])
    for name, ep, dp in LOADS:
        found[f"AutoEP {name} -> DeepSpeed ep {ep} of {dp}"] = (
            dp, load, OURS / SAVED.name / name, RUNS[name]._replace(ep=ep, dp=dp, adjacent=False), truths[SAVED, name])
    for name, (mesh, ep, dp) in OWN_RUNS.items():
        run = Run(mesh.stage, "bf16" if "--bf16" in mesh.more else "fp32", mesh.ep, mesh.dp)
        found[f"own {name} -> DeepSpeed ep {ep} of {dp}"] = (
            dp, load, OURS / OWN.name / name, run._replace(stage=max(run.stage, 1), ep=ep, dp=dp), owns[name])
        if name in ORDINARY:
            found[f"own {name} -> DeepSpeed as it is"] = (run.dp, load, OWN / name, run, owns[name], False)
    return found


def main():
    runs = {(SAVED, name): (run.dp, save, SAVED / name, run) for name, run in RUNS.items()}
    runs |= {(OLDER, name): (run.dp, save, OLDER / name, run, True) for name, run in OLDER_RUNS.items()}
    truths = checks.truths_of(runs, LOGS / "saves")
    owns = checks.truths_of({name: (0, own, name) for name in OWN_RUNS}, LOGS)
    checks.check("AutoEP", cases(truths, owns), LOGS)


if __name__ == "__main__":
    main()
