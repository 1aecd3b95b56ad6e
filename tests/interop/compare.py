#!/usr/bin/env python3
"""Real torch.load, ds_to_universal, zero_to_fp32, DeepSpeed engine and Hugging Face's loaders on what we write, and both
converters on what DeepSpeed does:

    compare.py FOLDER_OF_EXECUTABLES OURS THEIRS

OURS/NAME is a save folder of pretrain_gpt, THEIRS/NAME/checkpoint one of DeepSpeed's or Megatron-DeepSpeed's. One line per
folder; exits 1 if anything fails or any number, key or type differs in one bit. Differences that are theirs by construction
are named in KNOWN and in the functions that expect them; one that does not appear is a failure too.
"""
import enum
import pathlib
import re
import runpy
import sys
import types

import huggingface_hub
import safetensors.torch
import torch
import transformers
from transformers.trainer_utils import load_sharded_checkpoint

import deepspeed
from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, zero_to_torch

from checks import DTYPES, Mismatch, check, differences, expect, load, our, tensor_differences

STATES = ("fp32", "exp_avg", "exp_avg_sq")
ROW_PARALLEL = re.compile(r"\.(self_attention\.dense|mlp\.dense_4h_to_h)\.weight/")
# The expected result for a DeepSpeed folder, where it is not equality.
KNOWN = {
    "z0-fp32-dp2": "refused",  # their ds_to_universal does not support ZeRO 0
    "z0-fp32-tp2dp2": "refused",
    "z2-bf16-tp2dp2-nopipe": "refused",  # theirs fails on the nested `module` (B1)
    "z1-bf16-tp1pp1dp2": "cat_dim",  # Megatron names row-parallel weights at tp > 1 only: 0 in theirs, 1 in ours
}
# Metadata files of the other ZeRO family: 0 to 2 for a checkpoint of 3, and the other way round.
TWIN = {True: r"mp_rank_\d+_model_states\.pt", False: r"zero_pp_rank_0_mp_rank_\d+_model_states\.pt"}


def padded_difference(whole, padded, where):
    """`padded` may have rows of vocabulary padding behind those of `whole`; both flattened."""
    n = whole.numel()
    yield from differences(whole.flatten(), padded.flatten()[:n], where)
    if padded.flatten()[n:].any():
        yield f"{where}: padding that is not zero"


def universal_parameters(folder):
    """name -> {state: tensor}, each file opened as untrusted data."""
    return {d.name: {s: load(d / f"{s}.pt", weights_only=True)["param"] for s in STATES if (d / f"{s}.pt").exists()}
            for d in sorted((folder / "zero").iterdir()) if d.is_dir()}


# ---- Programs

def their_converter(tag, output, *flags):
    sys.argv = ["ds_to_universal.py", "--input_folder", str(tag), "--output_folder", str(output),
                "--num_extract_workers", "1", "--num_merge_workers", "1", *flags]
    ds_to_universal.main(ds_to_universal.parse_arguments())


def our_converter(tag, output, *flags):
    our("ds_to_universal", "--input_folder", tag, "--output_folder", output, *flags)


def their_zero_to_fp32(folder, output):
    """Through the script that the save left there."""
    sys.argv = ["zero_to_fp32.py", str(folder), str(output)]
    runpy.run_path(str(folder / "zero_to_fp32.py"), run_name="__main__")
    return load(output / "pytorch_model.bin", weights_only=True)


class Weights(torch.nn.Module):
    """A module with parameters of these names and values, and a loss that all of them take part in."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            module.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor)))

    def forward(self):
        return sum(p.float().square().sum() for p in self.parameters())


def export_differences(checkpoint, expected, scratch):
    """Our zero_to_fp32, in one file and in many, as torch, safetensors, huggingface_hub and transformers load it."""
    for name, flags in (("pytorch_model.bin", ()), ("model.safetensors", ("--safe_serialization",))):
        safe = name.endswith(".safetensors")
        one, many = scratch / f"one-{name}", scratch / f"many-{name}"
        our("zero_to_fp32", checkpoint, one, *flags)
        our("zero_to_fp32", checkpoint, many, "--max_shard_size", "20KB", *flags)
        loaded = safetensors.torch.load_file(one / name) if safe else load(one / name, weights_only=True)
        yield from tensor_differences(loaded, expected, name)
        for key, tensor in loaded.items():  # a view must be written with its own elements, not with the whole storage
            if tensor.untyped_storage().nbytes() != tensor.nbytes:
                yield f"{name}: {key} has a storage of {tensor.untyped_storage().nbytes()} bytes, not {tensor.nbytes}"
        by_hub = lambda model, folder: huggingface_hub.load_torch_model(model, folder, strict=True, safe=safe)
        for load_into, folder in ((by_hub, one), (by_hub, many), (load_sharded_checkpoint, many)):
            model = Weights(expected)
            load_into(model, folder)
            yield from tensor_differences(dict(model.named_parameters()), expected, f"{folder.name} by {load_into.__name__}")


def engine_differences(folder, parameters, stage, dtype, universal, steps):
    """Resumes in a real DeepSpeed engine of one rank, and takes a step there. (On CPU it has no fp16.)"""
    model = Weights({name: states["fp32"] for name, states in parameters.items()})
    ordered = [model.get_parameter(name) for name in parameters]
    groups = [{"params": [p for p in ordered if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in ordered if p.dim() == 1], "weight_decay": 0.0}]
    config = {"train_batch_size": 1, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              "checkpoint": {"load_universal": universal}}
    if dtype != "fp32":
        config["bf16"] = {"enabled": True}
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    path, client_state = engine.load_checkpoint(str(folder))
    expect(path is not None, f"engine: {folder} not loaded")
    if stage < 3:
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # as the first step would
    expect(engine.global_steps == steps == client_state["iteration"], f"engine: {engine.global_steps} steps, not {steps}")
    for name, parameter in engine.module.named_parameters():
        ours = parameters[name]
        yield from differences(ours["fp32"], safe_get_full_fp32_param(parameter), f"engine: {name} fp32")
        for state in STATES[1:]:
            yield from differences(ours[state], safe_get_full_optimizer_state(parameter, state), f"engine: {name} {state}")
    taken = {float(s["step"]) for s in engine.optimizer.optimizer.state.values()}
    expect(taken == {float(steps)}, f"engine: Adam's steps {taken}, not {steps}")
    engine.backward(engine())
    engine.step()
    for name, parameter in engine.module.named_parameters():
        after = safe_get_full_fp32_param(parameter)
        if torch.equal(after, parameters[name]["fp32"]) or not after.isfinite().all():
            yield f"engine: {name} after a step"
    engine.destroy()


# ---- Universal folders

def files_in(folder):
    return {str(f.relative_to(folder)) for f in folder.rglob("*.pt")}


def universal_differences(ours, theirs, cat_dim_differs=False):
    """ZeRO 3 without tensor parallelism is flat and bare in theirs, with padding, and no ZeRO 3 has steps or frozen parameters.
    What is frozen has its padding in theirs at every stage, and no word on how it is cut. Ours has the metadata under the names
    of both ZeRO families, in optimizer_state.pt what either of them looks for, without rank 0's flat tensors of ZeRO 3."""
    mine, other = files_in(ours), files_in(theirs)
    zero3 = any(f.startswith("zero_pp_rank_") for f in other)
    frozen = {f for f in mine if f.endswith("/fp32.pt") and f.replace("fp32.pt", "exp_avg.pt") not in mine}
    for file in sorted(mine ^ other):
        more = file in mine and (zero3 and (file.endswith("/step.pt") or file in frozen) or re.fullmatch(TWIN[zero3], file))
        if not more:
            yield f"{file}: only in {'ours' if file in mine else 'theirs'}"
    wrong_cuts = 0
    for file in sorted(mine & other):
        a, b = load(ours / file), load(theirs / file)
        if file == "zero/optimizer_state.pt":
            a = {key: value for key, value in a.items() if key in b}
            if zero3:
                del b["fp32_flat_groups"]
                adam = b["optimizer_state_dict"]
                adam["state"] = {group: {"step": state["step"]} for group, state in adam["state"].items()}
        if cat_dim_differs and ROW_PARALLEL.search(file) and isinstance(a, dict):
            expect((a["cat_dim"], b["cat_dim"]) == (1, 0), f"{file}: cat_dim {a['cat_dim']} and {b['cat_dim']}")
            a["cat_dim"] = 0
            wrong_cuts += 1
        if zero3 and file.startswith("zero/") and torch.is_tensor(b):
            yield from padded_difference(a["param"].detach(), b.detach(), file)
        elif file in frozen and b.keys() == {"param"}:
            yield from padded_difference(a["param"].detach(), b["param"].detach(), file)
        else:
            yield from differences(a, b, file)
    expect(cat_dim_differs == (wrong_cuts > 0), "no cat_dim differs")


# ---- Ours

def padded_parameters(parameters, model):
    """As a rank of an ordinary checkpoint has them: in the order of the flat buffers, with the vocabulary's padding rows."""
    shapes = {name: shape for group in model["param_shapes"] for name, shape in group.items()}
    return {name: {state: torch.cat([t.detach(), t.new_zeros(shape[0] - t.shape[0], *t.shape[1:])])
                   for state, t in parameters[name].items()} for name, shape in shapes.items()}


def weights_in_model_precision(tag):
    """name -> tensor, of tp = 1; None if the files hold none: `module` without a pipeline, else the layers."""
    models = sorted(tag.glob("mp_rank_*_model_states.pt"))
    if not models:
        return None
    module = load(models[0])["module"]
    if module is not None:
        return dict(module)
    tied = {"word_embeddings.weight", "position_embeddings.weight"}
    return {("tied_modules.embed." if name in tied else f"{int(file.name[6:8])}.") + name: tensor
            for file in sorted(tag.glob("layer_*")) for name, tensor in load(file, weights_only=True).items()}


def ours(folder, scratch):
    tag = folder / (folder / "latest").read_text()
    files = sorted(tag.glob("*.pt"))
    contents = {f.name: load(f) for f in files}
    for file in files:
        if file.name.startswith("layer_"):
            load(file, weights_only=True)
    model = next(c for name, c in contents.items() if name.endswith("_model_states.pt") and not name.startswith("layer_"))
    stage = model["ds_config"]["zero_optimization"]["stage"]
    dtype = next((d for d in ("bf16", "fp16") if model["ds_config"][d]["enabled"]), "fp32")
    tp, pp = (model["checkpoint_parallel_dimensions"][k] for k in ("tp_degree", "pp_degree"))
    report, wrong = [f"{len(files)} files, ZeRO {stage}, tp {tp}, pp {pp}, dp {model['dp_world_size']}, {dtype}"], []
    expect((folder / "zero_to_fp32.py").exists() == (stage > 0), "zero_to_fp32.py")

    universal = scratch / "ours" / f"{tag.name}_universal"
    our_converter(tag, universal)
    parameters = universal_parameters(universal)
    frozen = {name for c in contents.values() for name in c.get("frozen_param_shapes") or ()}
    expect(frozen == {name for name, states in parameters.items() if "exp_avg" not in states}, f"moments of {frozen}")
    report.append(f"{len(parameters)} parameters" + (f", {len(frozen)} of them frozen" if frozen else ""))
    if (tag / "pytorch_model.bin").exists():
        model_16bit = load(tag / "pytorch_model.bin", weights_only=True)
        rounded = {name: states["fp32"].to(DTYPES[dtype]) for name, states in parameters.items()}
        wrong += tensor_differences(model_16bit, rounded, "pytorch_model.bin")
        report.append("pytorch_model.bin")
    weights = weights_in_model_precision(tag) if tp == 1 else None
    if weights:
        expect(weights.keys() == parameters.keys(), f"weights: {weights.keys() ^ parameters.keys()}")
        for name, weight in weights.items():
            wrong += padded_difference(parameters[name]["fp32"].detach().to(weight.dtype), weight, f"weights: {name}")
        report.append("module" if pp == 1 else "layers")
    # DeepSpeed does not handle frozen parameters that a mesh or ZeRO 3 cuts, and reports their patterns as errors.
    if (stage in (1, 2) or (stage == 3 and pp == 1)) and not (frozen and (stage == 3 or tp * pp > 1)):
        theirs = scratch / "theirs" / universal.name
        their_converter(tag, theirs, *(["--no_strict"] if frozen else []))
        wrong += universal_differences(universal, theirs)
        report.append(f"ds_to_universal: {len(files_in(theirs))} files")
    if stage > 0 and tp == pp == 1:
        exported = their_zero_to_fp32(folder, scratch / "fp32")
        expect(exported.keys() == parameters.keys(), f"zero_to_fp32: {exported.keys() ^ parameters.keys()}")
        for name, states in parameters.items():
            wrong += padded_difference(states["fp32"].detach(), exported[name].detach(), f"zero_to_fp32: {name}")
        report.append(f"zero_to_fp32: {len(exported)} tensors")
        said = our("ckpt", "diff", folder, scratch / "fp32")
        padded = sum(exported[name].shape != states["fp32"].shape for name, states in parameters.items())
        expect(said.count("pad the vocabulary") == padded and said.endswith(" 0 differences\n"), f"ckpt diff: {said}")
    wrong += export_differences(folder, {name: states["fp32"] for name, states in parameters.items()}, scratch)
    report.append("our zero_to_fp32")
    if frozen:  # a frozen model would need an optimizer made for it
        return wrong, "; ".join(report)
    engine_stage = max(stage, 1)
    wrong += engine_differences(universal.parent, parameters, engine_stage, dtype, True, model["iteration"])
    report.append(f"engine at ZeRO {engine_stage}")
    if stage > 0 and tp * pp * model["dp_world_size"] == 1:
        wrong += engine_differences(folder, padded_parameters(parameters, model), stage, dtype, False, model["iteration"])
        report.append("and without conversion")
    return wrong, "; ".join(report)


# ---- A model of transformers

def from_pretrained(stage, scratch):
    """A GPT-2 of transformers, tied, trained by DeepSpeed and exported by us, is what from_pretrained loads."""
    config = transformers.GPT2Config(vocab_size=61, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    settings = {"train_batch_size": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True},
                "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings)
    tokens = torch.arange(8)[None]
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    engine.save_checkpoint(str(scratch / "checkpoint"))
    masters = {name: safe_get_full_fp32_param(p).clone() for name, p in engine.module.named_parameters()}
    engine.destroy()
    wrong = []
    for flags in ((), ("--max_shard_size", "5KB"), ("--safe_serialization",), ("--safe_serialization", "--max_shard_size", "5KB")):
        weights = scratch / f"weights{''.join(flags)}"
        our("zero_to_fp32", scratch / "checkpoint", weights, *flags)
        config.save_pretrained(weights)
        loaded, info = transformers.GPT2LMHeadModel.from_pretrained(weights, dtype=torch.float32, local_files_only=True,
                                                                    output_loading_info=True)
        expect(not any(info.values()), f"from_pretrained: {info}")
        expect(loaded.lm_head.weight is loaded.transformer.wte.weight, "from_pretrained: not tied")
        wrong += tensor_differences(dict(loaded.named_parameters()), masters, "".join(flags))
    return wrong, f"{len(masters)} parameters"


# ---- Theirs

def rounded_differences(checkpoint, scratch):
    """Our zero_to_fp32 --dtype and their zero_to_torch.py. Theirs cannot write tied weights as safetensors."""
    for dtype in ("fp32", "bf16", "fp16"):
        zero_to_torch.main([str(checkpoint), str(scratch / f"theirs-{dtype}"), "--dtype", dtype])
        expected = load(scratch / f"theirs-{dtype}" / "pytorch_model.bin", weights_only=True)
        our("zero_to_fp32", checkpoint, scratch / f"bin-{dtype}", "--dtype", dtype)
        our("zero_to_fp32", checkpoint, scratch / f"safe-{dtype}", "--dtype", dtype, "--safe_serialization")
        for mine in (load(scratch / f"bin-{dtype}" / "pytorch_model.bin", weights_only=True),
                     safetensors.torch.load_file(scratch / f"safe-{dtype}" / "model.safetensors")):
            yield from tensor_differences(mine, expected, f"--dtype {dtype}")


def stand_in_for_megatron():
    """Files of Megatron's hold one enum of its own."""
    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].ModelType = enum.Enum("ModelType", ["encoder_or_decoder", "encoder_and_decoder"])


def theirs(folder, scratch):
    stand_in_for_megatron()
    checkpoint = folder / "checkpoint"
    tag = checkpoint / (checkpoint / "latest").read_text()
    known = KNOWN.get(folder.name)
    model = load(next(iter(sorted(tag.glob("*mp_rank_00_model_states.pt")))))
    flags = [] if "universal_checkpoint_info" in model else ["--inject_missing_state"]
    mine, other = (scratch / who / f"{tag.name}_universal" for who in ("ours", "theirs"))
    # At ZeRO 0 DeepSpeed does not record which parameter a state belongs to. Megatron's order is known.
    unordered = known == "refused" and "args" not in model
    our_converter(tag, mine, *flags, *(["--assume_module_order"] if unordered else []))
    if known == "refused":
        try:
            their_converter(tag, other, *flags)
        except Exception as error:
            return f"theirs refuses it: {error or type(error).__name__}"
        raise Mismatch("theirs no longer refuses it")
    their_converter(tag, other, *flags)
    wrong = list(universal_differences(mine, other, cat_dim_differs=known == "cat_dim"))
    report = [f"{len(files_in(other))} files, {len(list((mine / 'zero').glob('*/fp32.pt')))} parameters"]
    if "args" not in model and model["mp_world_size"] == 1:  # theirs refuses tp; Megatron's are padded, or of a pipeline
        wrong += rounded_differences(checkpoint, scratch)
        report.append("zero_to_torch in 3 dtypes")
    return wrong, "; ".join(report)


def main():
    mine, other = ({f.name: f for f in sorted(pathlib.Path(folder).iterdir())} for folder in sys.argv[2:4])
    cases = {f"{name}, written by us": (ours, folder) for name, folder in mine.items()}
    cases |= {f"GPT2LMHeadModel, ZeRO {stage}, trained by DeepSpeed, exported by us": (from_pretrained, stage) for stage in (1, 2, 3)}
    fixtures = {name: folder for name, folder in other.items() if (folder / "checkpoint").exists()}
    cases |= {f"{name}, written by theirs, converted by both": (theirs, folder) for name, folder in fixtures.items()}
    expect(mine and fixtures, "no folders")
    for number, (name, (work, what)) in enumerate(cases.items()):
        scratch = pathlib.Path("scratch") / str(number)
        scratch.mkdir(parents=True)
        cases[name] = (1, work, what, scratch)
    versions = ", ".join(f"{package.__name__} {package.__version__}" for package in (torch, deepspeed, transformers))
    check(f"{len(mine)} + {len(fixtures)} folders, {versions}", cases)


if __name__ == "__main__":
    main()
