"""pretrain_gpt's mixture of experts as a module that DeepSpeed's AutoEP takes, its engine, and the engine's state over all ranks.
Also a model with DeepSpeed's older layer, MoE."""
import torch
import torch.distributed
from torch import nn

import deepspeed
from deepspeed.moe.layer import MoE
from deepspeed.utils import groups

import reshard_model
from reshard_model import base_optimizer, live

LAYERS, HIDDEN, HEADS, KEY_VALUE_HEADS, WIDE, VOCABULARY, SEQUENCE = 3, 16, 4, 2, 24, 64, 12
EXPERTS, CHOSEN, EXPERT_WIDE, SHARED_WIDE = 8, 2, 12, 20
BATCH = 8
FLAGS = ["--num-layers", LAYERS, "--hidden-size", HIDDEN, "--num-attention-heads", HEADS, "--num-key-value-heads", KEY_VALUE_HEADS,
         "--ffn-hidden-size", WIDE, "--seq-length", SEQUENCE, "--max-position-embeddings", SEQUENCE, "--vocab-size", VOCABULARY,
         "--make-vocab-size-divisible-by", 8, "--untie-embeddings-and-output-weights", "--swiglu", "--disable-bias-linear",
         "--normalization", "rmsnorm", "--use-rotary-position-embeddings", "--attention-dropout", 0, "--hidden-dropout", 0,
         "--num-experts", EXPERTS, "--moe-router-topk", CHOSEN, "--moe-ffn-hidden-size", EXPERT_WIDE, "--moe-layer-freq", 2,
         "--moe-shared-expert-intermediate-size", SHARED_WIDE, "--moe-shared-expert-gate"]


# ---- The model

class Swiglu(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(HIDDEN, 2 * wide, bias=False)
        self.dense_4h_to_h = nn.Linear(wide, HIDDEN, bias=False)

    def forward(self, x):
        gate, up = self.dense_h_to_4h(x).chunk(2, -1)
        return self.dense_4h_to_h(nn.functional.silu(gate) * up)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in (("w1", (EXPERT_WIDE, HIDDEN)), ("w2", (HIDDEN, EXPERT_WIDE)), ("w3", (EXPERT_WIDE, HIDDEN))):
            self.register_parameter(name, nn.Parameter(torch.empty(EXPERTS, *shape)))


class Mixture(nn.Module):
    """AutoEP puts its own layer in place of this one, which so has no forward."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = Experts()
        self.shared_experts = Swiglu(SHARED_WIDE)
        self.shared_experts_gate = nn.Linear(HIDDEN, 1, bias=False)


def turned(x):
    """[b, s, heads, d], each position by its angles."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1]).unsqueeze(1) / 10000 ** (torch.arange(half) / half)
    sine, cosine = angle.sin().unsqueeze(1), angle.cos().unsqueeze(1)
    a, b = x.float().split(half, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_key_value = nn.Linear(HIDDEN, HIDDEN // HEADS * (HEADS + 2 * KEY_VALUE_HEADS), bias=False)
        self.dense = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        shared = HEADS // KEY_VALUE_HEADS  # queries that share a key
        rows = self.query_key_value(x).unflatten(-1, (KEY_VALUE_HEADS, shared + 2, HIDDEN // HEADS))
        queries = rows[..., :shared, :].flatten(2, 3)
        keys, values = (rows[..., shared + i, :].repeat_interleave(shared, 2) for i in (0, 1))
        mixed = nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (turned(queries), turned(keys), values)), is_causal=True)
        return self.dense(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.self_attention = Attention()
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.mlp = mlp

    def forward(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Gpt(nn.Module):
    """Its parameters have pretrain_gpt's names, in its order: 1.word_embeddings.weight, 2.input_layernorm.weight, ..."""

    def __init__(self):
        super().__init__()
        self.add_module("1", nn.ModuleDict({"word_embeddings": nn.Embedding(VOCABULARY, HIDDEN)}))
        for i in range(LAYERS):
            self.add_module(str(i + 2), Layer(Swiglu(WIDE) if i % 2 else Mixture()))
        self.add_module(str(LAYERS + 2), nn.RMSNorm(HIDDEN, eps=1e-5))
        self.add_module(str(LAYERS + 3), nn.ModuleDict({"lm_head": nn.Linear(HIDDEN, VOCABULARY, bias=False)}))

    def logits(self, tokens):
        embed, *layers, head = self.children()
        x = embed["word_embeddings"](tokens)
        for layer in layers:
            x = layer(x)
        return head["lm_head"](x)

    def forward(self, tokens):
        return loss_of(self.logits(tokens[:, :-1]), tokens)


class OlderMixture(nn.Module):
    """Two layers of DeepSpeed's older MoE, whose experts are modules of their own, with a norm between them."""

    def __init__(self, ep):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        for name, experts in (("first", EXPERTS), ("second", 4)):
            expert = nn.Sequential(nn.Linear(HIDDEN, EXPERT_WIDE), nn.GELU(), nn.Linear(EXPERT_WIDE, HIDDEN))
            self.add_module(name, MoE(HIDDEN, expert, num_experts=experts, ep_size=ep, k=1, capacity_factor=4.0))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        x = x + self.first(x)[0]
        x = x + self.second(self.norm(x))[0]
        return loss_of(self.head(x), tokens)


def loss_of(logits, tokens):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def initialize(model, seed):
    """With each expert's values its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(float(norm), 0.2, generator=generator)
    return model


# ---- The engine

class Parameters:
    """Those that the model has when they are asked for: AutoEP puts others in place of some before."""

    def __init__(self, model, wanted):
        self.model, self.wanted = model, wanted

    def __iter__(self):
        return (p for p in self.model.parameters() if self.wanted(p))


def forget_groups():
    """DeepSpeed keeps the groups of the ranks' last engine, and takes the largest of all."""
    for kept in (groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_PARALLEL_GROUP_RANKS, groups._EXPERT_DATA_PARALLEL_GROUP,
                 groups._EXPERT_DATA_PARALLEL_GROUP_RANKS):
        kept.clear()


def make_engine(stage, dtype, ep, seed=1, universal=False, older=False, adjacent=False):
    """DeepSpeed splits the two groups: with decay, without, and the same of experts, where there are any. At ZeRO 3 its universal load takes the first
    group's settings for all, so none has another decay there."""
    forget_groups()
    model = initialize(OlderMixture(ep) if older else Gpt(), seed)
    kinds = {"matrices": lambda p: p.dim() > 1, "vectors": lambda p: p.dim() == 1}
    chosen = [{"name": name, "params": Parameters(model, wanted), "weight_decay": 0.1 if name == "matrices" or stage == 3 else 0.0}
              for name, wanted in kinds.items()]
    config = {"train_micro_batch_size_per_gpu": BATCH // torch.distributed.get_world_size(), "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": {"lr": 5e-3, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True, "bf16": {"enabled": dtype == "bf16"},
              "checkpoint": {"load_universal": universal},
              "use_data_before_expert_parallelism": adjacent}
    if not older:
        config["expert_parallel"] = {
            "enabled": True, "autoep_size": ep, "moe_layer_pattern": r"\d+\.mlp", "router_pattern": "router",
            "expert_pattern": "experts", "expert_w1": "w1", "expert_w2": "w2", "expert_w3": "w3", "top_k": CHOSEN,
            "score_func": "softmax", "score_apply": "post", "route_norm": True, "use_grouped_mm": False,
            "has_shared_experts": True, "shared_experts_pattern": "shared_experts",
            "shared_experts_gate_pattern": "shared_experts_gate"}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=chosen, config=config)
    return engine


def part_steps(engine):
    """DeepSpeed's universal load at ZeRO 3 gives all groups one and the same tensor of steps. Each group's Adam would then count
    the others' steps too, from its own folders as from ours: losses of the second step and on would be 2e-4 off."""
    for state in base_optimizer(engine).state.values():
        state["step"] = state["step"].clone()


def train(engine, first, steps):
    return reshard_model.train(engine, first, steps, VOCABULARY, BATCH, SEQUENCE)


def some_tokens():
    return torch.randint(VOCABULARY, (3, SEQUENCE), generator=torch.Generator().manual_seed(99))


def logits_of(engine):
    """Through the engine, whose forward gathers what ZeRO 3 cuts."""
    module = engine.module
    module.eval()
    try:
        module.forward = module.logits
        with torch.no_grad():
            return engine(some_tokens()).float()
    finally:
        del module.forward
        module.train()


# ---- The state

def from_all_ranks(tensor, ep, adjacent):
    """Returns the tensors of the ranks that share the experts, in order. Ranks with the same experts must agree."""
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor.contiguous())
    replicas = len(parts) // ep
    found = []
    for i in range(ep):
        first, *others = parts[i * replicas:][:replicas] if adjacent else parts[i::ep]
        if not all(torch.equal(first, other) for other in others):
            raise RuntimeError(f"ranks with the experts of ep rank {i} do not agree on them")
        found.append(first)
    return found


def whole(engine, ep):
    """Returns all that the engine holds now on all ranks: {"NAME WHAT": tensor}. A buffer, the count of tokens, is not saved."""
    adjacent = engine._config.use_data_before_expert_parallel_
    state = {key: value for key, value in live(engine).items() if not key.endswith(" buffer")}
    for key in [key for key in state if ".experts.w" in key]:
        state[key] = torch.cat(from_all_ranks(state[key], ep, adjacent))
    for key in [key for key in state if ".deepspeed_experts." in key]:
        before, behind = key.split(".deepspeed_experts.")
        expert, behind = behind.split(".", 1)
        locals_ = EXPERTS // ep if before.startswith("first") else 4 // ep
        for rank, part in enumerate(from_all_ranks(state.pop(key), ep, adjacent)):
            state[f"{before}.global.{rank * locals_ + int(expert)}.{behind}"] = part
    return {key.replace(".global.", ".deepspeed_experts."): value for key, value in state.items()}
