"""A tiny model with what a checkpoint can have, its engine, and the engine's state per parameter."""
import torch
import torch.distributed
from torch import nn

import deepspeed
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

VOCABULARY, HIDDEN, SEQUENCE, BATCH = 37, 12, 6, 60


class Model(nn.Module):
    """A tied weight, a frozen one, parameters smaller than the ranks are many, two buffers."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.frozen = nn.Linear(HIDDEN, 7)  # no other has its shapes: at ZeRO 0, names are found by them
        self.up = nn.Linear(HIDDEN, 19)
        self.down = nn.Linear(19, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.scale = nn.Parameter(torch.full((3,), 1.0 + seed))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.batch = BATCH
        self.register_buffer("positions", torch.randn(SEQUENCE, HIDDEN))
        self.register_buffer("counts", torch.arange(3) + seed)

    def forward(self, tokens):
        hidden = self.embed(tokens[:, :-1])
        hidden = hidden + self.positions.to(hidden.dtype)
        hidden = hidden + self.frozen(hidden).sum(-1, keepdim=True)
        hidden = self.norm(hidden + self.down(torch.tanh(self.up(hidden))) * self.scale.mean())
        logits = self.head(hidden).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Lion(torch.optim.Optimizer):
    """One state, no step."""

    def __init__(self, groups, lr=5e-3):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(0.9 * momentum + 0.1 * p.grad), alpha=-group["lr"])
                momentum.mul_(0.99).add_(p.grad, alpha=0.01)


OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=5e-3),
    "named": lambda groups: torch.optim.AdamW(groups, lr=5e-3),  # with the parameters' names, which ZeRO 0 saves
    "amsgrad": lambda groups: torch.optim.AdamW(groups, lr=5e-3, amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    # DeepSpeed's ZeRO 1 has one group of it.
    "adagrad": lambda groups: torch.optim.Adagrad([p for g in groups for p in g["params"]], lr=1e-2),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=5e-3),  # single numbers beside the step
    "asgd": lambda groups: torch.optim.ASGD(groups, lr=1e-2),
    "lion": Lion,
    "muon": None,  # DeepSpeed's own, which its configuration asks for
}


def config(stage, dtype, zero={}, optimizer="adamw", **more):
    parts = {"train_batch_size": BATCH, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
             "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage, **zero},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 5e-3, "warmup_num_steps": 9}}}
    if stage == 3:
        parts["zero_optimization"].setdefault("stage3_param_persistence_threshold", 100)
    if dtype == "bf16":
        parts["bf16"] = {"enabled": True}
    parts["fp16"] = {"enabled": dtype == "fp16", "initial_scale_power": 8, "loss_scale_window": 2}
    if optimizer == "muon":
        parts["optimizer"] = {"type": "Muon", "params": {"lr": 5e-3, "momentum": 0.9, "weight_decay": 0.1}}
    return parts | more


def make_engine(stage, dtype, optimizer="adamw", seed=1, **more):
    """Three groups: matrices with weight decay, vectors without, and one of three elements, fewer than there may be ranks."""
    model = Model(seed)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for p in model.parameters():
        p.use_muon = p.dim() > 1 and p is not model.embed.weight
    small = trained.pop("scale")
    groups = [{"params": [p for p in trained.values() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in trained.values() if p.dim() == 1], "weight_decay": 0.0},
              {"params": [small], "weight_decay": 0.0}]
    if optimizer == "named":
        names = {p: name for name, p in model.named_parameters()}
        groups = [group | {"params": [(names[p], p) for p in group["params"]]} for group in groups]
    made = OPTIMIZERS[optimizer] and OPTIMIZERS[optimizer](groups)
    given = {"model_parameters": [*trained.values(), small]} if made is None else {"optimizer": made}
    engine, *_ = deepspeed.initialize(model=model, config=config(stage, dtype, optimizer=optimizer, **more), **given)
    return engine


def train(engine, first, steps, vocabulary=VOCABULARY, batch_size=BATCH, sequence=SEQUENCE, tp=1, loss_of=None):
    """The losses of the global batches `first` and on, which are the same on any number of ranks. `tp` neighbours share samples."""
    ranks, losses = torch.distributed.get_world_size(), []
    for step in range(first, first + steps):
        batch = torch.randint(vocabulary, (batch_size, sequence + 1), generator=torch.Generator().manual_seed(step))
        own = batch.view(ranks // tp, -1, sequence + 1)[torch.distributed.get_rank() // tp]
        loss = (loss_of or engine)(own)
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / ranks)
    return losses


def base_optimizer(engine):
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def full(parameter):
    with deepspeed.zero.GatheredParameters([parameter] if hasattr(parameter, "ds_id") else []):
        return parameter.detach().clone()


def flat_groups(optimizer):
    """Pairs of the parameters of a (sub-)group and this rank's flat partition of their masters."""
    for groups, flat in (("fp16_groups", "fp32_partitioned_groups_flat"), ("bit16_groups", "single_partition_of_fp32_groups"),
                         ("bf16_groups", "fp32_groups_flat_partition")):
        if hasattr(optimizer, flat):
            return list(zip(getattr(optimizer, groups), getattr(optimizer, flat)))


def masters(engine):
    """Pairs of a parameter and the one that a ZeRO 0 optimizer updates for it."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups"):
        return [pair for groups in zip(optimizer.fp16_groups, optimizer.fp32_groups) for pair in zip(*groups)]
    return [(p, p) for group in optimizer.param_groups for p in group["params"]]


def vectors(state):
    """Names of the states that have an element for each of a parameter's."""
    return sorted(key for key, value in state.items() if torch.is_tensor(value) and value.dim() > 0)


def link(optimizer):
    """Makes safe_get_full_optimizer_state right: ZeRO 1 and 2 link the states of all groups after the step of the first, and in
    the order before round_robin_gradients."""
    if not hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        return
    if hasattr(optimizer, "round_robin_bit16_groups"):
        given, optimizer.bit16_groups = optimizer.bit16_groups, optimizer.round_robin_bit16_groups
        optimizer._link_all_hp_params()
    optimizer._hp_optimizer_states_linked = False
    optimizer._lazy_init_hp_params_optimizer_state()
    if hasattr(optimizer, "round_robin_bit16_groups"):
        optimizer.bit16_groups = given


def optimizer_state(engine):
    """Yields (parameter, name of a state or "fp32", whole tensor)."""
    states = base_optimizer(engine).state
    if not engine.zero_optimization():
        for parameter, master in masters(engine):
            yield parameter, "fp32", master.detach().float().clone()
            for key in vectors(states[master]):
                yield parameter, key, states[master][key].clone()
        return
    link(engine.optimizer)
    for parameters, flat in flat_groups(engine.optimizer):
        for parameter in parameters:
            yield parameter, "fp32", safe_get_full_fp32_param(parameter)
            for key in vectors(states[flat]):
                if key != "momentum_buffer" or not getattr(parameter, "use_muon", False):  # whole, and not gathered; losses tell
                    yield parameter, key, safe_get_full_optimizer_state(parameter, key)


def live(engine):
    """What the engine holds now, whole: {"NAME WHAT": tensor}: weights as the model computes with them, masters, the optimizer's
    states, buffers, counters."""
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    found = {f"{name} weight": full(parameter) for parameter, name in names.items()}
    found.update({f"{names[parameter]} {key}": value.clone() for parameter, key, value in optimizer_state(engine)})
    found.update({f"{name} buffer": buffer.clone() for name, buffer in engine.module.named_buffers()})
    return found | counters(engine)


def counters(engine):
    """Steps by the engine's count and by the optimizer's, learning rates, loss scale, the norm that gradients are clipped to."""
    optimizer = base_optimizer(engine)
    steps = {float(s["step"]) for s in optimizer.state.values() if "step" in s}
    return {"steps": torch.tensor([engine.global_steps, engine.global_samples, engine.skipped_steps, *sorted(steps)]),
            "rates": torch.tensor([(g["lr"], g["weight_decay"]) for g in optimizer.param_groups], dtype=torch.double),
            "scale": torch.tensor(float(getattr(engine.optimizer, "loss_scale", None) or 1)),
            "clip": torch.tensor(float(getattr(engine.optimizer, "clip_grad", engine.gradient_clipping())))}
