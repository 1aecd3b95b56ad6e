#!/usr/bin/env python3
"""The plain PyTorch mixture of experts beside which pretrain_gpt is timed: the same weights, data and maths on one process.

    torch_experts.py CHECKPOINT LAYERS HIDDEN HEADS SEQ BATCH VOCAB EXPERTS CHOSEN FFN fp32|bf16 loop|grouped STEPS

CHECKPOINT is a folder with the weights to start from, by zero_to_fp32. `loop` works through the experts one after the other, as
transformers does; `grouped` sorts the tokens by expert and calls grouped_mm. Prints a line a step, as torch_gpt.py.
"""
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

from torch_gpt import train


class Experts(nn.Module):
    def __init__(self, hidden, count, chosen, ffn, grouped):
        super().__init__()
        self.chosen, self.grouped = chosen, grouped
        self.router = nn.Parameter(torch.empty(count, hidden))
        self.w1, self.w3 = (nn.Parameter(torch.empty(count, ffn, hidden)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(count, hidden, ffn))

    def forward(self, x):
        x, shape = x.flatten(0, 1), x.shape
        best, experts = F.linear(x, self.router).float().topk(self.chosen, -1)
        weights = best.softmax(-1).to(x.dtype)
        return (self.in_groups if self.grouped else self.in_turn)(x, experts, weights).view(shape)

    def in_turn(self, x, experts, weights):
        y = torch.zeros_like(x)
        for e in range(len(self.w1)):
            token, choice = torch.where(experts == e)
            if len(token) == 0:
                continue
            own = x[token]
            inner = F.silu(F.linear(own, self.w1[e])) * F.linear(own, self.w3[e])
            y.index_add_(0, token, F.linear(inner, self.w2[e]) * weights[token, choice, None])
        return y

    def in_groups(self, x, experts, weights):
        order = experts.flatten().argsort(stable=True)
        ends = torch.bincount(experts.flatten(), minlength=len(self.w1)).cumsum(0).to(torch.int32)
        product = lambda rows, w: F.grouped_mm(rows, w.transpose(1, 2), offs=ends)
        own = x[order // self.chosen]
        rows = product(F.silu(product(own, self.w1)) * product(own, self.w3), self.w2) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, order // self.chosen, rows)


class Block(nn.Module):
    def __init__(self, hidden, heads, *experts):
        super().__init__()
        self.heads = heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden, 1e-5), nn.RMSNorm(hidden, 1e-5)
        self.query_key_value, self.dense = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.experts = Experts(hidden, *experts)

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        q, k, v = self.query_key_value(self.input_layernorm(x)).view(b, s, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        turn = lambda t: torch.cat([t[..., :t.shape[-1] // 2] * cos - t[..., t.shape[-1] // 2:] * sin,
                                    t[..., t.shape[-1] // 2:] * cos + t[..., :t.shape[-1] // 2] * sin], -1)
        mixed = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        x = x + self.dense(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.experts(self.post_attention_layernorm(x))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, seq, vocab, *experts):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, *experts) for _ in range(layers))
        self.final_norm, self.lm_head = nn.RMSNorm(hidden, 1e-5), nn.Linear(hidden, vocab, bias=False)
        width = hidden // heads
        angles = torch.arange(seq)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, labels):
        x = self.word_embeddings(tokens)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype))
        logits = self.lm_head(self.final_norm(x))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels)


def our_name(name, layers):
    """pretrain_gpt's name of a parameter."""
    parts = name.split(".")
    if parts[0] == "blocks":
        part = ".".join(parts[2:])
        part = {"experts.router": "mlp.router.gate.weight"}.get(part, f"mlp.{part}" if part.startswith("experts") else part)
        return f"{int(parts[1]) + 2}." + (f"self_attention.{part}" if parts[2] in ("query_key_value", "dense") else part)
    return {"word_embeddings.weight": "1.word_embeddings.weight", "final_norm.weight": f"{layers + 2}.weight",
            "lm_head.weight": f"{layers + 3}.lm_head.weight"}[name]


def main():
    layers, hidden, heads, seq, batch, vocab, count, chosen, ffn = map(int, sys.argv[2:11])
    precision, mode, steps = sys.argv[11], sys.argv[12], int(sys.argv[13])
    model = Gpt(layers, hidden, heads, seq, vocab, count, chosen, ffn, mode == "grouped")
    states = torch.load(pathlib.Path(sys.argv[1]) / "pytorch_model.bin", weights_only=True)
    model.load_state_dict({name: states[our_name(name, layers)] for name in model.state_dict()})
    train(model, precision, "eager", steps, seq, batch, vocab)


main()
