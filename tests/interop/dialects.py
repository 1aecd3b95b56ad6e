#!/usr/bin/env python3
"""Checkpoints of real DeepSpeed, FSDP2 (torch.distributed.checkpoint) and Megatron-Core (torch_dist):

    dialects.py FOLDER_OF_EXECUTABLES

Each framework saves on 2 or 4 ranks. ckpt writes the other's format, and that framework loads it on other ranks by its unmodified
loader. Weights, buffers, both moments, steps, rates and weight decays must be those of the run that saved, bit for bit, and the
next three losses those of the run that went on there. A Llama that one of the three has trained goes on in pretrain_gpt, by
`hf_convert import --checkpoint`. One line per case; exits 1 if any fails.
"""
import csv
import pathlib
import shlex
import shutil

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import deepspeed
from checks import check, expect, furthest, our, tensor_differences, too_far, truths_of
from megatron_core import Distributed, MegatronCore
from megatron_fsdp import MegatronFsdp
from reshard_model import BATCH, SEQUENCE, VOCABULARY, Model, live

SAVED, CUT, LOGS = map(pathlib.Path, ("saved", "cut", "logs"))
STEPS = 3  # before the save, and again after it
BOUND = 1e-6
TAG = f"global_step{STEPS}"


def groups_of(model):
    """Matrices with weight decay, vectors without; the model's order is not that of the groups."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


class Fsdp:
    """A run of FSDP2. `how` is "flat" or "nested", as its optimizer's states are saved, or "accelerate", as it saves: in two folders."""

    def __init__(self, how, model, mesh=None, groups=groups_of):
        self.how, self.model = how, model
        mesh = mesh or init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for child in model.children():
            if all(p is not q for p in child.parameters() for other in model.children() if other is not child
                   for q in other.parameters()):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=5e-3)
        self.options = StateDictOptions(flatten_optimizer_state_dict=how == "flat")

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=self.options)
        return {"model": model, "optim": optimizer}

    def load(self, folder):
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                       options=self.options)

    def save(self, folder):
        state = self.state()
        if self.how == "accelerate":
            dcp.save({"model": state["model"]}, checkpoint_id=folder / "pytorch_model_fsdp_0")
            dcp.save({"optimizer": state["optim"]}, checkpoint_id=folder / "optimizer_0")
        else:
            dcp.save(state, checkpoint_id=folder)

    def step(self, own):
        loss = self.model(own)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def held(self):
        found = {f"{name} weight": whole(p) for name, p in self.model.named_parameters()}
        found |= {f"{name} buffer": whole(b) for name, b in self.model.named_buffers()}
        for name, p in self.model.named_parameters():
            if p in self.optimizer.state:
                found[f"{name} fp32"] = whole(p)
                found |= {f"{name} {key}": whole(self.optimizer.state[p][key]) for key in ("exp_avg", "exp_avg_sq")}
        return found, self.optimizer


class RankFiles(Fsdp):
    """A run of FSDP2, or with `how` 2 of HSDP with so many replicas, that saves as veRL does: one group, and files for each rank."""

    def __init__(self, how, model):
        mesh = {"replicate": how, "shard": torch.distributed.get_world_size() // how}
        super().__init__("flat", model, init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh)),
                         lambda model: [{"params": list(model.parameters()), "weight_decay": 0.0}])

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        end = f"world_size_{torch.distributed.get_world_size()}_rank_{torch.distributed.get_rank()}.pt"
        torch.save(self.model.state_dict(), folder / f"model_{end}")
        torch.save(self.optimizer.state_dict(), folder / f"optim_{end}")


class DeepSpeed:
    """A run of DeepSpeed at ZeRO stage `how`."""

    def __init__(self, how, model):
        zero = {"stage": how} | ({"stage3_param_persistence_threshold": 100} if how == 3 else {})
        config = {"train_batch_size": model.batch, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
                  "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero}
        names, groups = {p: name for name, p in model.named_parameters()}, groups_of(model)
        if how == 0:  # which records no names otherwise
            groups = [group | {"params": [(names[p], p) for p in group["params"]]} for group in groups]
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=5e-3), config=config)

    def load(self, folder):
        path, _ = self.engine.load_checkpoint(str(folder))
        assert path, folder

    def save(self, folder):
        self.engine.save_checkpoint(str(folder))

    def step(self, own):
        loss = self.engine(own)
        self.engine.backward(loss)
        self.engine.step()
        return loss

    def held(self):
        kinds = ("weight", "buffer", "fp32", "exp_avg", "exp_avg_sq")
        found = {key: value for key, value in live(self.engine).items() if key.rpartition(" ")[2] in kinds and " " in key}
        return found, getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)


RUN = {"fsdp": Fsdp, "ranks": RankFiles, "deepspeed": DeepSpeed}


def state_of(run):
    found, optimizer = run.held()
    return found | {"steps": torch.tensor(sorted({float(s["step"]) for s in optimizer.state.values()})),
                    "rates": torch.tensor([(g["lr"], g["weight_decay"]) for g in optimizer.param_groups], dtype=torch.double)}


def loss_of_step(run, batch):
    """The mean over a global batch, of which Megatron-Core's ranks of tp have the same part."""
    ranks = torch.distributed.get_world_size()
    part, parts = run.data_part() if isinstance(run, MegatronCore) else (torch.distributed.get_rank(), ranks)
    total = run.step(batch.view(parts, -1, batch.shape[1])[part]).detach().double()
    torch.distributed.all_reduce(total)
    return total.item() / ranks


def train(run, first):
    """The losses of the global batches `first` and on, which are the same on any number of ranks."""
    return [loss_of_step(run, torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(step)))
            for step in range(first, first + STEPS)]


def saved(framework, how, folder):
    """Trains, saves, goes on: the state at the save, and the losses after it."""
    run = RUN[framework](how, Model(seed=1))
    train(run, 0)
    run.save(folder)
    return state_of(run), train(run, STEPS)


def loaded(framework, how, folder, truth, save_to=None):
    run = RUN[framework](how, Model(seed=2))
    run.load(folder)
    state, losses = truth
    wrong = list(tensor_differences(state_of(run), state))
    if save_to:
        run.save(save_to)
    off = furthest(train(run, STEPS), losses)
    return wrong + too_far("losses", off, BOUND), f"{len(state)} tensors are the same, losses {off:.1e} off"


SAVES = {"fsdp-flat-2": ("fsdp", "flat", 2), "fsdp-nested-4": ("fsdp", "nested", 4), "ds-zero0-2": ("deepspeed", 0, 2),
         "ds-zero1-4": ("deepspeed", 1, 4), "ds-zero2-2": ("deepspeed", 2, 2), "ds-zero3-4": ("deepspeed", 3, 4)}


LENGTH, LLAMA_BATCH = 16, 12
# The samples of the corpus that a run has seen when pretrain_gpt has made its steps. DeepSpeed tells how many it has seen at the
# save, and FSDP2 does not: its data begins again.
SAMPLES = dict.fromkeys(("fsdp", "ranks", "megatron", "distributed", "megatron-fsdp"), STEPS * LLAMA_BATCH) | {"deepspeed": 2 * STEPS * LLAMA_BATCH}
LLAMA = dict(vocab_size=512, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=40,
             max_position_embeddings=LENGTH, tie_word_embeddings=False)
LLAMAS = {"llama-fsdp-flat-2": ("fsdp", "flat", 2), "llama-fsdp-nested-3": ("fsdp", "nested", 3), "llama-ds-zero3-4": ("deepspeed", 3, 4),
          "llama-accelerate-2": ("fsdp", "accelerate", 2), "llama-rank-files-3": ("ranks", 1, 3), "llama-rank-files-hsdp-4": ("ranks", 2, 4),
          "llama-ds-zero1-4": ("deepspeed", 1, 4), "llama-megatron-core-1": ("megatron", 0, 1),
          "llama-megatron-core-tp2": ("megatron", 64, 2)}  # rows of padding
# With sharded optimizers, on tp 2 x dp 2.
RESHARDABLE, BUCKETS = {"sharding": "fully_reshardable", "tp": 2}, {"sharding": "dp_reshardable", "tp": 2, "bucket_size": 4000}
SHARDED = {"llama-megatron-reshardable": ("distributed", RESHARDABLE, 4), "llama-megatron-buckets": ("distributed", BUCKETS, 4),
           "llama-megatron-fsdp": ("megatron-fsdp", {"tp": 2}, 4)}
MEGATRON = {"megatron": lambda padding, **more: MegatronCore(LLAMA, LENGTH, padding, **more),
            "distributed": lambda how, **more: Distributed(LLAMA, LENGTH, **how, **more),
            "megatron-fsdp": lambda how, **more: MegatronFsdp(LLAMA, LENGTH, **how, **more)}
MESHES = {"one process": [], "tp 2 x dp 2, ZeRO 3": ["--local-ranks", 4, "--tensor-model-parallel-size", 2, "--zero-stage", 3],
          "pp 3 x dp 2, ZeRO 1": ["--local-ranks", 6, "--pipeline-model-parallel-size", 3, "--zero-stage", 1]}


class Llama(torch.nn.Module):
    """The losses of a model of transformers, whose names it has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        config = transformers.LlamaConfig(**LLAMA)
        inner = transformers.AutoModelForCausalLM.from_config(config)
        self.model, self.lm_head = inner.model, inner.lm_head
        self.batch = LLAMA_BATCH

    def forward(self, tokens):
        logits = self.lm_head(self.model(tokens[:, :-1], use_cache=False).last_hidden_state)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def samples_of(count):
    printed = our("gpt_data", "samples", 0, count, "100,0,0", LENGTH, 1234, "corpus_text_document")
    return torch.tensor([[int(token) for token in line.split()] for line in printed.splitlines()])


def llama_run(framework, how):
    return MEGATRON[framework](how) if framework in MEGATRON else RUN[framework](how, Llama())


def llama_saved(framework, how, folder, samples):
    """The losses after the save, of the last samples."""
    if torch.distributed.get_rank() == 0:
        transformers.LlamaConfig(architectures=["LlamaForCausalLM"], **LLAMA).save_pretrained(f"{folder}-config")
    run, losses = llama_run(framework, how), []
    for step in range(2 * STEPS):
        if step == STEPS:
            run.save(folder)
        losses.append(loss_of_step(run, samples[step % (len(samples) // LLAMA_BATCH) * LLAMA_BATCH:][:LLAMA_BATCH]))
    return losses[STEPS:]


def llama_loaded(framework, how, folder, samples, losses):
    """Whether a run goes on from a folder of ours with these losses."""
    run = llama_run(framework, how)
    run.load(folder)
    off = furthest([loss_of_step(run, batch) for batch in samples.split(LLAMA_BATCH)], losses)
    return too_far("losses", off, BOUND), f"losses {off:.1e} off"


def bf16_saved(framework, how, folder, samples):
    """The masters and moments of a run of Megatron-Core in bf16."""
    run = MEGATRON[framework](how, bf16=True)
    for batch in samples.split(LLAMA_BATCH):
        loss_of_step(run, batch)
    run.save(folder)
    return run.held()


def bf16_loaded(folder, truth):
    """Whether a run in fp32 has the masters that went through our files."""
    run = llama_run("megatron", 0)
    run.load(folder)
    held = run.held()
    return list(tensor_differences(held, truth)), f"{len(held)} tensors are the same"


def llama_passed_on(framework, how, source, folder):
    run = llama_run(framework, how)
    run.load(source)
    run.save(folder)


def imported(name):
    """The flags of pretrain_gpt for our checkpoint of a Llama that another framework has trained."""
    printed = our("hf_convert", "import", f"{SAVED / name}-config", CUT / f"{name}-imported", "--checkpoint", source_of(name))
    flags = shlex.split(printed.splitlines()[-1])
    expect("--finetune" not in flags, flags)
    return flags


def trained_here(flags, framework, rows, *more):
    """{iteration: loss}"""
    our("pretrain_gpt", *flags, "--data-path", "corpus_text_document", "--split", "100,0,0", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", LLAMA["vocab_size"], "--seq-length", LENGTH, "--global-batch-size", LLAMA_BATCH, "--micro-batch-size", 2,
        "--train-samples", SAMPLES[framework], "--lr", 5e-3, "--lr-decay-style", "constant", "--clip-grad", 0,
        "--weight-decay", 0.0 if framework == "ranks" else 0.1,
        "--adam-beta2", 0.999, "--eval-iters", 0, "--loss-csv", rows, *more)
    with open(rows) as file:
        return {int(row["iteration"]): float(row["lm_loss"]) for row in csv.DictReader(file)}


def goes_on_here(name, mesh, losses):
    framework, flags = (LLAMAS | SHARDED)[name][0], imported(name)
    own = CUT / f"{name}{mesh[2] if mesh else ''}"
    if mesh and framework != "deepspeed":  # from a folder of the framework itself, to it, and on from there
        flags[flags.index("--load") + 1] = shutil.copytree(SAVED / name, own)
        mesh = [*mesh, "--save", own, "--exit-interval", STEPS + 2]
        expect(len(trained_here([*flags, *mesh], framework, own.with_suffix(".csv"))) == 2, "it did not stop")
    mine = trained_here([*flags, *mesh], framework, own.with_suffix(".csv"))
    expect(sorted(mine) == [STEPS + 1, STEPS + 2, STEPS + 3], f"iterations {sorted(mine)}")
    off = furthest(list(mine.values()), losses)
    return too_far("losses", off, BOUND), f"losses {off:.1e} off"


def exported_cases():
    """A run of ours goes on in FSDP2 and in Megatron-Core."""
    flags = [*imported("llama-fsdp-flat-2"), *MESHES["tp 2 x dp 2, ZeRO 3"]]
    losses = trained_here(flags, "fsdp", CUT / "ours.csv", "--save", SAVED / "ours", "--save-interval", 1)
    samples, after = samples_of(SAMPLES["fsdp"])[LLAMA_BATCH:], [losses[5], losses[6]]
    for form in ("dcp", "torch_dist"):
        our("hf_convert", "export", SAVED / "ours", CUT / f"ours.{form}", "--to", form, "--tag", "global_step4")
        our("ckpt", "verify", CUT / f"ours.{form}")
    return {f"pretrain_gpt -> {what}, of {ranks}": (ranks, llama_loaded, framework, how, CUT / f"ours.{form}", samples, after)
            for what, form, framework, how, ranks in (("FSDP2, flat", "dcp", "fsdp", "flat", 3), ("FSDP2, nested", "dcp", "fsdp", "nested", 2),
                                                      ("Megatron-Core", "torch_dist", "megatron", 0, 1),
                                                      ("Megatron-Core, padded", "torch_dist", "megatron", 64, 2))}


def around_all():
    """DeepSpeed, ZeRO 3 of 4 -> FSDP2 of 3 -> Megatron-Core, tp 2 -> DeepSpeed, ZeRO 1 of 2: bit for bit what it was."""
    name, last = "llama-ds-zero3-4", CUT / "last"
    our("ckpt", "convert", source_of(name), CUT / "first.dcp", "--to", "dcp")
    truths_of({"FSDP2": (3, llama_passed_on, "fsdp", "flat", CUT / "first.dcp", SAVED / "passed-on.dcp")}, LOGS / "passed-on-1")
    config = f"{SAVED / name}-config"
    our("hf_convert", "import", config, last / "1", "--checkpoint", SAVED / "passed-on.dcp")
    our("hf_convert", "export", last / "1", CUT / "second.td", "--to", "torch_dist")
    truths_of({"Megatron-Core": (2, llama_passed_on, "megatron", 0, CUT / "second.td", SAVED / "passed-on.td")}, LOGS / "passed-on-2")
    our("hf_convert", "import", config, last / "2", "--checkpoint", SAVED / "passed-on.td")
    our("hf_convert", "export", last / "2", CUT / "third.dcp", "--to", "dcp")
    our("ckpt", "convert", CUT / "third.dcp", CUT / "around" / TAG, "--to", "deepspeed", "--target", "dp=2,zero=1")
    return our("ckpt", "diff", source_of(name), CUT / "around" / TAG).splitlines()[-1]


def source_of(name):
    framework, *_ = (SAVES | LLAMAS | SHARDED).get(name, ("fsdp",))
    return SAVED / name / TAG if framework == "deepspeed" else SAVED / name


def to_dcp(name):
    our("ckpt", "convert", source_of(name), CUT / f"{name}.dcp", "--to", "dcp")
    return CUT / f"{name}.dcp"


def to_deepspeed(source, ranks, stage, name):
    our("ckpt", "convert", source, CUT / f"{name}-{stage}" / TAG, "--to", "deepspeed", "--target", f"dp={ranks},zero={stage}")
    return CUT / f"{name}-{stage}"


def main():
    truths = truths_of({name: (ranks, saved, framework, how, SAVED / name) for name, (framework, how, ranks) in SAVES.items()}, LOGS / "saves")
    cases = {}
    for name in SAVES:
        folder = to_dcp(name)  # also FSDP2's own: it must load what we wrote
        for how, ranks in (("flat", 3), ("nested", 2)):
            cases[f"{name} -> FSDP2, {how}, of {ranks}"] = (ranks, loaded, "fsdp", how, folder, truths[name])
        if name.startswith("fsdp"):
            for stage, ranks in ((0, 3), (1, 3), (2, 4), (3, 2)):
                cases[f"{name} -> DeepSpeed, ZeRO {stage}, of {ranks}"] = (
                    ranks, loaded, "deepspeed", stage, to_deepspeed(source_of(name), ranks, stage, name), truths[name])
    ((wrong, _),) = truths_of({"DeepSpeed, ZeRO 3, of 4 -> FSDP2 of 3": (
        3, loaded, "fsdp", "flat", CUT / "ds-zero3-4.dcp", truths["ds-zero3-4"], SAVED / "around")}, LOGS / "around").values()
    expect(not wrong, wrong)
    cases["... -> DeepSpeed, ZeRO 1, of 2"] = (
        2, loaded, "deepspeed", 1, to_deepspeed(SAVED / "around", 2, 1, "around"), truths["ds-zero3-4"])
    llamas = truths_of({name: (ranks, llama_saved, framework, how, SAVED / name, samples_of(SAMPLES[framework]))
                        for name, (framework, how, ranks) in (LLAMAS | SHARDED).items()}, LOGS / "llamas")
    for name, mesh in [(name, mesh) for name in LLAMAS for mesh in MESHES] + [(name, "tp 2 x dp 2, ZeRO 3") for name in SHARDED]:
        cases[f"{name} -> pretrain_gpt, {mesh}"] = (0, goes_on_here, name, MESHES[mesh], llamas[name])
    cases |= exported_cases()
    masters = truths_of({f"bf16-{name}": (ranks, bf16_saved, framework, how, SAVED / f"bf16-{name}", samples_of(SAMPLES[framework]))
                         for name, (framework, how, ranks) in (SHARDED | {"llama-megatron-core": ("megatron", 0, 1)}).items()}, LOGS / "bf16")
    for name, truth in masters.items():
        our("hf_convert", "import", SAVED / "llama-megatron-core-1-config", CUT / name, "--checkpoint", SAVED / name)
        our("hf_convert", "export", CUT / name, CUT / f"{name}.td", "--to", "torch_dist")
        tp = len({key.split()[0] for key in truth})
        cases[f"{name} -> pretrain_gpt -> Megatron-Core in fp32, tp {tp}"] = (tp, bf16_loaded, CUT / f"{name}.td", truth)
    cases["llama: DeepSpeed, ZeRO 3, of 4 -> FSDP2 of 3 -> Megatron-Core, tp 2 -> DeepSpeed, ZeRO 1, of 2"] = (0, around_all)
    check("DeepSpeed, FSDP2, Megatron-Core and pretrain_gpt", cases, LOGS)


if __name__ == "__main__":
    main()
