#!/usr/bin/env python3
"""The plain PyTorch script beside which pretrain_gpt is timed: the same GPT-2, weights, data and maths on one process.

    torch_gpt.py CHECKPOINT LAYERS HIDDEN HEADS SEQ BATCH VOCAB fp32|bf16|autocast eager|compile STEPS [cpu|cuda]

CHECKPOINT is mp_rank_00_model_states.pt of one process of pretrain_gpt: the weights to start from.
bf16: weights and activations in bf16, fp32 masters and gradients' sums, as pretrain_gpt --bf16 has it; autocast: fp32 weights,
torch.autocast. Prints a line a step, "step 7 loss 5.123456789 ms 81.2", and last the peak resident memory.
"""

import contextlib
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

SEED = 1234


def mix(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def sample(index, seq, vocab):
    """Sample `index` of --mock-data: seq + 1 tokens."""
    symbols = min(vocab, 64)
    stream = mix(SEED ^ mix(index))
    symbol, tokens = mix(stream) % symbols, []
    for p in range(seq + 1):
        tokens.append(symbol * (vocab // symbols))
        dice = mix((stream + p + 1) & ((1 << 64) - 1))
        symbol = (dice >> 8) % symbols if dice % 8 == 0 else (5 * symbol + 3) % symbols
    return tokens


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.input_layernorm = nn.LayerNorm(hidden)
        self.post_attention_layernorm = nn.LayerNorm(hidden)
        self.query_key_value, self.dense = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.query_key_value(self.input_layernorm(x)).view(b, s, self.heads, -1).transpose(1, 2).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dense(mixed.transpose(1, 2).reshape(b, s, h))
        inner = F.gelu(self.dense_h_to_4h(self.post_attention_layernorm(x)), approximate="tanh")
        return x + self.dense_4h_to_h(inner)


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, seq, vocab):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.final_layernorm = nn.LayerNorm(hidden)

    def forward(self, tokens, labels):
        x = self.word_embeddings(tokens) + self.position_embeddings.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.final_layernorm(x), self.word_embeddings.weight)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels)


def our_name(name, layers):
    """pretrain_gpt's name of a parameter."""
    parts = name.split(".")
    if parts[0] == "blocks":
        module = "self_attention." if parts[2] in ("query_key_value", "dense") else "mlp." if parts[2].startswith("dense") else ""
        return f"{int(parts[1]) + 2}.{module}{parts[2]}.{parts[3]}"
    return f"{layers + 2}.{parts[1]}" if parts[0] == "final_layernorm" else f"tied_modules.embed.{name}"


def train(model, precision, mode, steps, seq, batch, vocab, device="cpu"):
    """Trains a model that returns the loss of tokens and labels. Prints a line a step."""
    masters = list(model.parameters())
    if precision == "bf16":
        masters = [nn.Parameter(p.detach().clone()) for p in masters]
        model.bfloat16()
    params = list(model.parameters())
    groups = [{"params": [m for m in masters if m.dim() > 1]}, {"params": [m for m in masters if m.dim() == 1], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.01, eps=1e-8, betas=(0.9, 0.999), fused=True)
    run = torch.compile(model) if mode == "compile" else model
    context = torch.autocast(device, torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()

    for step in range(steps):
        rows = torch.tensor([sample(step * batch + i, seq, vocab) for i in range(batch)])
        started = time.perf_counter()
        rows = rows.to(device)
        with context:
            loss = run(rows[:, :-1].contiguous(), rows[:, 1:].reshape(-1))
        loss.backward()
        if precision == "bf16":
            for master, param in zip(masters, params):
                master.grad, param.grad = param.grad.float(), None
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if precision == "bf16":
            with torch.no_grad():
                torch._foreach_copy_(params, masters)
        last = loss.item()
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"step {step + 1} loss {last:.9g} ms {(time.perf_counter() - started) * 1e3:.3f}", flush=True)


def main():
    layers, hidden, heads, seq, batch, vocab = map(int, sys.argv[2:8])
    precision, mode, steps = sys.argv[8], sys.argv[9], int(sys.argv[10])
    device = sys.argv[11] if len(sys.argv) > 11 else "cpu"
    with torch.device(device):
        model = Gpt(layers, hidden, heads, seq, vocab)
    states = torch.load(sys.argv[1], weights_only=False)["module"]
    model.load_state_dict({name: states[our_name(name, layers)] for name in model.state_dict()})
    train(model, precision, mode, steps, seq, batch, vocab, device)
    print("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")


if __name__ == "__main__":
    main()
