#!/usr/bin/env python3
"""Our ds_to_universal against real DeepSpeed's AutoTP:

    autotp.py FOLDER_OF_EXECUTABLES

Trains tiny models of transformers on tp 2 and saves them. Our universal folder must be that of DeepSpeed's own converter, byte
for byte. The unmodified load_checkpoint must load ours on tp 1 and tp 4: all state is that of the run that saved, bit for bit,
and the next three losses are those of the run that went on, up to rounding. One line per case; exits 1 if any fails.
"""
import collections
import pathlib
import types

import torch
import transformers

import deepspeed
from deepspeed.module_inject.layers import LinearAllreduce

import checks
import compare
import reshard_model
from reshard_model import live

SAVED, OURS, THEIRS, LOGS = map(pathlib.Path, ("saved", "ours", "theirs", "logs"))
TAG = "global_step3"
VOCABULARY, BATCH, SEQUENCE, STEPS = 61, 8, 12, 3
BOUND = {"fp32": 1e-6, "bf16": 2**-8}  # of the losses, relative: ranks sum in another order, in half precision by one rounding

SIZES = {"vocab_size": VOCABULARY, "initializer_range": 0.2, "tie_word_embeddings": False}
GPT = SIZES | {"n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 16}
LLAMA = SIZES | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 16,
                 "num_attention_heads": 8, "num_key_value_heads": 4}
# Family, its configuration, what AutoTP is told, and whether the model runs. DeepSpeed cuts the heads of some, whose forward
# still counts all of them: their loss is the sum of the weights' squares.
MODELS = {
    "llama": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}, {}, True),
    "uneven": ("Llama", LLAMA | {"intermediate_size": 95}, {"vocab_parallel_lm_head": True}, True),
    "gpt_neox": ("GPTNeoX", LLAMA, {}, True),
    "codegen": ("CodeGen", GPT | {"rotary_dim": 4}, {}, True),
    "bloom": ("Bloom", SIZES | {"hidden_size": 32, "n_layer": 2, "n_head": 8, "tie_word_embeddings": True}, {}, False),
    "gpt_bigcode": ("GPTBigCode", GPT | {"multi_query": False}, {}, False),
    "phi3": ("Phi3", LLAMA | {"num_key_value_heads": 8, "pad_token_id": 0}, {"preset_model": "phi3"}, False),
}
Run = collections.namedtuple("Run", "model stage dtype tp dp")

RUNS = {f"z{stage}-fp32": Run("llama", stage, "fp32", 2, min(stage, 1) + 1) for stage in range(4)}
RUNS |= {f"z{stage}-bf16": Run("llama", stage, "bf16", 2, 1) for stage in (0, 1, 3)}
RUNS |= {model: Run(model, 1, "fp32", 2, 1) for model in MODELS if model != "llama"}
ON_FOUR = ["z0-fp32", "z1-fp32", "z2-fp32", "z3-fp32", "z1-bf16", "uneven"]


# ---- On the ranks

def runs_as_it_is(run):
    return MODELS[run.model][3]


def make_model(run):
    family, arguments, *_ = MODELS[run.model]
    of_family = getattr(transformers, f"{family}ForCausalLM")
    model = of_family(of_family.config_class(**arguments, use_cache=False, attn_implementation="eager"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if not runs_as_it_is(run):
        model.forward = lambda **batch: types.SimpleNamespace(loss=sum(p.square().sum() for p in model.parameters()))
    return model


def make_engine(run, seed=1, universal=False):
    """Two groups. One at ZeRO 3, where DeepSpeed loads the first group's settings and one counter of steps for all. At ZeRO 0 the
    parameters have names, since DeepSpeed itself does not record which state is whose."""
    torch.manual_seed(seed)
    model = make_model(run)
    parameters = list(model.named_parameters()) if run.stage == 0 else [(None, p) for p in model.parameters()]
    decays = [(name, p) for name, p in parameters if p.dim() > 1 or run.stage == 3]
    others = [(name, p) for name, p in parameters if p.dim() == 1 and run.stage < 3]
    groups = [{"params": group if run.stage == 0 else [p for _, p in group], "weight_decay": decay}
              for group, decay in ((decays, 0.1), (others, 0.0)) if group]
    options = MODELS[run.model][2] if run.tp > 1 else {}
    config = {"train_micro_batch_size_per_gpu": BATCH // run.dp, "gradient_clipping": 1.0,
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": run.stage}, "bf16": {"enabled": run.dtype == "bf16"},
              "tensor_parallel": {"autotp_size": run.tp, **options}, "checkpoint": {"load_universal": universal}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=5e-3), config=config)
    return engine


def train(engine, run, first):
    return reshard_model.train(engine, first, STEPS, VOCABULARY, BATCH, SEQUENCE - 1, run.tp,
                               lambda batch: engine(input_ids=batch, labels=batch).loss)


def gathered(parameter, shard):
    """The whole of which `shard` is this tp rank's, by the layer that cut it; None if that layer cannot."""
    gather = getattr(parameter, "gather_params", None)
    if gather is None or (isinstance(gather.__self__, LinearAllreduce) and shard.dim() == 1):
        return shard
    kept, parameter.data = parameter.data, shard.clone()
    try:
        gather([parameter])
        return parameter.data.clone()
    except RuntimeError as error:
        if "cannot be reassembled" not in str(error):
            raise
    finally:
        parameter.data = kept


def whole(engine):
    """What the engine holds now: {"NAME WHAT": tensor}, and the counters."""
    parameters, state = dict(engine.module.named_parameters()), live(engine)
    for key in state:
        name, *what = key.split(" ")
        if what and name in parameters:
            state[key] = gathered(parameters[name], state[key])
    return {key: value for key, value in state.items() if value is not None}


def save(folder, run):
    engine = make_engine(run)
    train(engine, run, 0)
    engine.save_checkpoint(str(folder))
    truth = {"state": whole(engine), "losses": train(engine, run, STEPS)}
    engine.destroy()
    return truth


def load(folder, run, truth):
    """What differs, the number of tensors, and how far the losses are off. Some layers cannot gather what they cut, so the truth
    lacks their weights: on tp 1 CodeGen's losses vouch for its own."""
    engine = make_engine(run, seed=2, universal=True)
    path, _ = engine.load_checkpoint(str(folder))
    found, losses = whole(engine), train(engine, run, STEPS)
    engine.destroy()
    wrong = [] if path else ["not loaded"]
    wrong += checks.tensor_differences({key: found[key] for key in truth["state"]}, truth["state"])
    figures = f"{len(truth['state'])} tensors are equal"
    if runs_as_it_is(run):
        off = checks.furthest(losses, truth["losses"])
        wrong += checks.too_far("losses", off, BOUND[run.dtype])
        figures += f", losses {off:.1e} off"
    return wrong, figures


def convert(name, stage):
    """What differs, and how many files do not. Theirs refuses ZeRO 0."""
    mine, other = (who / name / f"{TAG}_universal" for who in (OURS, THEIRS))
    compare.our_converter(SAVED / name / TAG, mine)
    try:
        compare.their_converter(SAVED / name / TAG, other)
    except FileNotFoundError as error:
        return [] if stage == 0 else [error], "theirs refuses ZeRO 0"
    return list(compare.universal_differences(mine, other)), f"{len(compare.files_in(other))} files are equal"


def damage(truth):
    """A load of a folder with one other bit in one moment, which all of the above must see."""
    name, parameter = "z1-fp32", "model.layers.1.self_attn.o_proj.weight"
    wrong, _ = load(checks.flipped(OURS / name, f"{parameter}/exp_avg.pt", lambda file: file["param"], (5, 7)), on(1, name), truth)
    expected = f"['{parameter} exp_avg']: 1 of 16384 bytes"
    return [] if wrong[:1] == [expected] else [wrong], expected


def on(tp, name):
    return RUNS[name]._replace(tp=tp, dp=1, stage=max(RUNS[name].stage, 1))


def main():
    truths = checks.truths_of({name: (run.tp * run.dp, save, SAVED / name, run) for name, run in RUNS.items()}, LOGS / "saves")
    cases = {f"{name} converted": (1, convert, name, run.stage) for name, run in RUNS.items()}
    for tp, names in ((1, RUNS), (4, ON_FOUR)):
        cases |= {f"{name} on tp {tp}": (tp, load, OURS / name, on(tp, name), truths[name]) for name in names}
    cases["a flipped bit is seen"] = (1, damage, truths["z1-fp32"])
    checks.check("AutoTP", cases, LOGS)


if __name__ == "__main__":
    main()
