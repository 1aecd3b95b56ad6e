#!/usr/bin/env python3
"""SGD, Lion and Muon beside real DeepSpeed and torch:

    optimizers.py FOLDER_OF_EXECUTABLES           one line per case; exits 1 if any fails

Our trainer makes steps 1 to 6. ds_reshard cuts its checkpoint of step 3 for DeepSpeed, which makes steps 4 to 9 and saves after
6. Our trainer makes 7 to 9 from there. The losses of three steps are those of the run that stayed.
"""
import csv
import pathlib
import subprocess
import types

import torch
from torch import nn

import deepspeed
import deepspeed.ops.lion.fused_lion
from checks import PROGRAMS, check, expect, furthest, load, our, too_far
from ranks import jobs_on_ranks

HIDDEN, HEADS, LAYERS, SEQUENCE, VOCABULARY, BATCH, RANKS = 16, 2, 2, 16, 512, 6, 2
SAMPLES = 9 * BATCH
RATES = {"sgd": 0.1, "lion": 1e-3, "muon": 2e-3}
MUON_SCALE = 5  # matrices have five times the rate
CLIP = 0.0
BOUND = 1e-6
FLAGS = ["--num-layers", LAYERS, "--hidden-size", HIDDEN, "--num-attention-heads", HEADS, "--seq-length", SEQUENCE,
         "--max-position-embeddings", SEQUENCE, "--vocab-size", VOCABULARY, "--tokenizer-type", "NullTokenizer", "--data-path",
         "corpus_text_document", "--split", "100,0,0", "--eval-iters", 0, "--attention-dropout", 0, "--hidden-dropout", 0,
         "--global-batch-size", BATCH, "--micro-batch-size", BATCH // RANKS, "--train-samples", SAMPLES, "--clip-grad", 0,
         "--lr-decay-style", "constant", "--weight-decay", 0.1, "--make-vocab-size-divisible-by", 8,
         "--untie-embeddings-and-output-weights"]


def multi_tensor_lion(chunk_size, overflow, tensors, lr, beta1, beta2, step, weight_decay):
    """DeepSpeed's FusedLion calls this in place of its compiled kernel, which has the same formula."""
    for gradient, parameter, momentum in zip(*tensors):
        update = (momentum * beta1 + gradient * (1 - beta1)).sign()
        parameter.sub_(lr * (update + weight_decay * parameter))
        momentum.mul_(beta2).add_(gradient * (1 - beta2))


deepspeed.ops.lion.fused_lion.FusedLionBuilder.load = lambda self: types.SimpleNamespace(multi_tensor_lion=multi_tensor_lion)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(HIDDEN)
        self.self_attention = nn.Module()
        self.self_attention.query_key_value = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.self_attention.dense = nn.Linear(HIDDEN, HIDDEN)
        self.post_attention_layernorm = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Module()
        self.mlp.dense_h_to_4h = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.mlp.dense_4h_to_h = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        b, s, h = x.shape
        mixed = self.self_attention.query_key_value(self.input_layernorm(x)).view(b, s, HEADS, 3, h // HEADS)
        q, k, v = (mixed[:, :, :, i].transpose(1, 2) for i in range(3))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_attention.dense(heads.transpose(1, 2).reshape(b, s, h))
        inner = nn.functional.gelu(self.mlp.dense_h_to_4h(self.post_attention_layernorm(x)), approximate="tanh")
        return x + self.mlp.dense_4h_to_h(inner)


class Gpt(nn.Module):
    """Our GPT, under its names."""

    def __init__(self):
        super().__init__()
        embed = nn.Module()
        embed.word_embeddings, embed.position_embeddings = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.add_module("1", embed)
        for layer in range(LAYERS):
            self.add_module(str(layer + 2), Layer())
        self.add_module(str(LAYERS + 2), nn.LayerNorm(HIDDEN))
        head = nn.Module()
        head.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.add_module(str(LAYERS + 3), head)

    def forward(self, samples):
        embed, *layers, head = self.children()
        x = embed.word_embeddings(samples[:, :-1]) + embed.position_embeddings(torch.arange(SEQUENCE))
        for layer in layers:
            x = layer(x)
        logits = head.lm_head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())


def config_of(optimizer, stage):
    rate, params = RATES[optimizer], {"weight_decay": 0.1}
    if optimizer == "sgd":
        params |= {"lr": rate, "momentum": 0.9}
    elif optimizer == "lion":
        params |= {"lr": rate, "betas": [0.9, 0.99]}
    else:
        params |= {"adam_lr": rate, "muon_lr": MUON_SCALE * rate, "ns_method": "standard", "torch_adam": True}
    zero = {"stage": stage, "reduce_scatter": optimizer != "muon"}
    return {"train_batch_size": BATCH, "gradient_clipping": CLIP, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "optimizer": {"type": {"sgd": "SGD", "lion": "Lion", "muon": "Muon"}[optimizer], "params": params},
            "zero_optimization": zero | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})}


def their_steps(optimizer, stage, source, samples, save):
    """DeepSpeed's losses 4 to 9."""
    torch.manual_seed(1)
    model = Gpt()
    named = list(model.named_parameters())
    decays = [p for name, p in named if p.dim() > 1]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}]
    engine, *_ = deepspeed.initialize(model=model, config=config_of(optimizer, stage), model_parameters=groups)
    path, _ = engine.load_checkpoint(source)
    assert path, source
    losses, rank = [], torch.distributed.get_rank()
    for step in range(4, 10):
        batch = samples[(step - 1) * BATCH:step * BATCH].view(RANKS, -1, SEQUENCE + 1)[rank]
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / RANKS)
        if step == 6:
            engine.save_checkpoint(save)
    return losses


def our_steps(optimizer, stage, name, *flags):
    our("pretrain_gpt", "--local-ranks", RANKS, *FLAGS, "--zero-stage", stage, "--optimizer", optimizer, "--lr", RATES[optimizer],
        *(["--muon-lr-scale", MUON_SCALE] if optimizer == "muon" else []), "--loss-csv", f"{name}.csv", *flags)
    with open(f"{name}.csv") as rows:
        return {int(row["iteration"]): float(row["lm_loss"]) for row in csv.DictReader(rows)}


def both_ways(optimizer, stage, samples):
    name = f"{optimizer}{stage}"
    truth = our_steps(optimizer, stage, f"{name}-whole", "--save", f"{name}/ours", "--save-interval", 3)
    our("ds_reshard", "--input_folder", f"{name}/ours/global_step3", "--output_folder", f"{name}/theirs/global_step3",
        "--target", f"dp={RANKS},zero={stage}")
    result, = jobs_on_ranks(RANKS, pathlib.Path(name), [(their_steps, optimizer, stage, f"{name}/theirs", samples, f"{name}/saved")])
    if isinstance(result, Exception):
        raise result
    again = our_steps(optimizer, stage, f"{name}-again", "--load", f"{name}/saved")
    expect(sorted(again) == [7, 8, 9], f"steps {sorted(again)}")
    there = furthest(result[:3], [truth[step] for step in (4, 5, 6)])
    back = furthest([again[step] for step in (7, 8, 9)], result[3:])
    return too_far("losses there", there, BOUND) + too_far("losses back here", back, BOUND), \
        f"losses 4 to 6 there {there:.1e} off, 7 to 9 back here {back:.1e}"


def weights_of(folder):
    our("zero_to_fp32", folder, f"{folder}-fp32", "-t", "global_step1")
    return load(next(pathlib.Path(f"{folder}-fp32").glob("*.bin")))


def muon_of_torch():
    """The first step of a matrix, by our trainer and by torch.optim.Muon from the same gradient, which SGD's step shows. Torch
    iterates in bf16; here it is made to keep fp32, as --muon-fp32 does."""
    start, rate = weights_of_start(), 0.01
    moved = {}
    for optimizer, lr, more in (("sgd", 1.0, []), ("muon", rate, ["--muon-fp32"])):
        our("pretrain_gpt", *FLAGS, "--optimizer", optimizer, "--lr", lr, "--weight-decay", 0, "--exit-interval", 1, "--save",
            f"step-{optimizer}", *more)
        moved[optimizer] = weights_of(f"step-{optimizer}")
    worst = 0.0
    torch.Tensor.bfloat16 = torch.Tensor.clone
    for name in (name for name in start if name.endswith("weight") and start[name].dim() == 2 and name[0] in "23"):
        weight = nn.Parameter(start[name].clone())
        weight.grad = start[name] - moved["sgd"][name]
        torch.optim.Muon([weight], lr=rate, momentum=0.95, weight_decay=0).step()
        update = weight.detach() - start[name]
        worst = max(worst, ((moved["muon"][name] - weight.detach()).norm() / update.norm()).item())
    return too_far("updates", worst, 1e-3), f"updates of torch.optim.Muon {worst:.1e} off"


def weights_of_start():
    """Those before the first step: a rate of 1e-30 moves no weight."""
    our("pretrain_gpt", *FLAGS, "--optimizer", "sgd", "--lr", 1e-30, "--weight-decay", 0, "--exit-interval", 1, "--save", "start")
    return weights_of("start")


def main():
    printed = subprocess.run([PROGRAMS / "gpt_data", "samples", "0", str(SAMPLES), "100,0,0", str(SEQUENCE), "1234",
                              "corpus_text_document"], capture_output=True, text=True, check=True).stdout
    samples = torch.tensor([[int(token) for token in line.split()] for line in printed.splitlines()])
    check("DeepSpeed and torch", {f"{optimizer}, ZeRO {stage}": (0, both_ways, optimizer, stage, samples)
                                  for optimizer in RATES for stage in (1, 2, 3)} | {"a step of Muon": (0, muon_of_torch)})


if __name__ == "__main__":
    main()
