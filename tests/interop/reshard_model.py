"""A tiny model with what a checkpoint can have, its engine, and the engine's state per parameter."""
import torch
import torch.distributed
from torch import nn

import deepspeed
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

VOCABULARY, HIDDEN, SEQUENCE, BATCH = 37, 12, 6, 60
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Model(nn.Module):
    """A tied weight, a frozen one, parameters smaller than the ranks are many, two buffers."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.frozen = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Linear(HIDDEN, 19)
        self.down = nn.Linear(19, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.scale = nn.Parameter(torch.full((3,), 1.0 + seed))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("positions", torch.randn(SEQUENCE, HIDDEN))
        self.register_buffer("counts", torch.arange(3) + seed)

    def forward(self, tokens):
        hidden = self.embed(tokens[:, :-1])
        hidden = hidden + self.positions.to(hidden.dtype)
        hidden = hidden + self.frozen(hidden)
        hidden = self.norm(hidden + self.down(torch.tanh(self.up(hidden))) * self.scale.mean())
        logits = self.head(hidden).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def adamw(groups):
    return torch.optim.AdamW(groups, lr=5e-3)


def config(stage, dtype, zero={}, **more):
    parts = {"train_batch_size": BATCH, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
             "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage, **zero},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 5e-3, "warmup_num_steps": 9}}}
    if stage == 3:
        parts["zero_optimization"].setdefault("stage3_param_persistence_threshold", 100)
    if dtype == "bf16":
        parts["bf16"] = {"enabled": True}
    if dtype == "fp16":
        parts["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}
    return parts | more


def make_engine(parts, optimizer=adamw, seed=1):
    model = Model(seed)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [{"params": [p for p in trained.values() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in trained.values() if p.dim() == 1], "weight_decay": 0.0}]
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer(groups), config=parts)
    return engine


def train(engine, first, steps):
    """The losses of the global batches `first` and on, which are the same on any number of ranks."""
    rank, size, losses = torch.distributed.get_rank(), torch.distributed.get_world_size(), []
    for step in range(first, first + steps):
        batch = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(step))
        loss = engine(batch.view(size, BATCH // size, -1)[rank])
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / size)
    return losses


def base_optimizer(engine):
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def full(parameter):
    with deepspeed.zero.GatheredParameters([parameter] if hasattr(parameter, "ds_id") else []):
        return parameter.detach().clone()


def state_keys(engine):
    """Names of the states that have an element for each of a parameter's."""
    states = [s for s in base_optimizer(engine).state.values() if s]
    return sorted({key for s in states for key, value in s.items() if torch.is_tensor(value) and value.dim() > 0})


def masters(engine):
    """Pairs of a parameter and the one that a ZeRO 0 optimizer updates for it."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups"):
        return [pair for groups in zip(optimizer.fp16_groups, optimizer.fp32_groups) for pair in zip(*groups)]
    return [(p, p) for group in optimizer.param_groups for p in group["params"]]


def live(engine):
    """What the engine holds now, whole: {"NAME STATE": tensor}, with the weights as the model computes with them, the masters, the
    optimizer's states and its steps."""
    states, found = base_optimizer(engine).state, {}
    keys = state_keys(engine)
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._hp_optimizer_states_linked = False  # they link all groups after the step of the first
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    plain = {} if engine.zero_optimization() else dict(masters(engine))
    for name, parameter in engine.module.named_parameters():
        found[f"{name} weight"] = full(parameter)
        if not parameter.requires_grad:
            continue
        if plain:
            master = plain[parameter]
            found[f"{name} fp32"] = master.detach().float().clone()
            found.update({f"{name} {key}": states[master][key].clone() for key in keys})
        else:
            found[f"{name} fp32"] = safe_get_full_fp32_param(parameter)
            found.update({f"{name} {key}": safe_get_full_optimizer_state(parameter, key) for key in keys})
    found.update({f"{name} buffer": buffer.clone() for name, buffer in engine.module.named_buffers()})
    steps = {float(s["step"]) for s in states.values() if "step" in s}
    found["steps"] = torch.tensor([engine.global_steps, engine.global_samples, engine.skipped_steps, *sorted(steps)])
    found["rates"] = torch.tensor([group["lr"] for group in base_optimizer(engine).param_groups], dtype=torch.double)
    found["scale"] = torch.tensor(float(getattr(engine.optimizer, "loss_scale", None) or 0))
    return found
