#!/usr/bin/env python3
"""Small random models of transformers, into our checkpoints and back:

    hf_convert.py FOLDER_OF_EXECUTABLES [BEGINNING_OF_A_MODELS_NAME]

Each is saved by transformers, imported, and has transformers' logits here, on one rank and on tp 2 x pp 2, experts also on ep 2, and
the tokens of its generate() at temperature 0. It is trained for two steps on four ranks and saved; what is exported from that
checkpoint has the logits that it has here. Adapters of PEFT come in and go out again, alone and merged. One line per model; exits 1 if
anything fails or a logit is off by more than TOLERANCE.
"""
import dataclasses
import json
import logging
import pathlib
import re
import shlex
import sys

logging.disable(logging.WARNING)

import peft
import safetensors.torch
import tokenizers
import torch
import transformers

import checks
from checks import expect, our, our_logits, refusal

transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
SEQUENCE, BATCH = 24, 3
MESHES = ("1,1", "2,2")  # tp,pp
EXPERT_MESHES = ("1,1,2", "2,1,2")  # tp,pp,ep

gpt2 = dict(vocab_size=131, n_positions=SEQUENCE, n_embd=32, n_layer=4, n_head=4)
llama = dict(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, intermediate_size=40,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, num_key_value_heads=6)
two = llama | dict(num_key_value_heads=2)
opt = dict(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, ffn_dim=40, word_embed_proj_dim=48,
           max_position_embeddings=64)
bloom = dict(vocab_size=131, n_layer=4)
neox = {key: value for key, value in llama.items() if key != "num_key_value_heads"}
falcon = dict(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, num_kv_heads=2)
experts = two | dict(num_experts_per_tok=2)
tied = dict(tie_word_embeddings=True)


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


FP32, BF16, FP16, SPLIT = (torch.float32, "5GB"), (torch.bfloat16, "5GB"), (torch.float16, "5GB"), (torch.float32, "20KB")
SPLIT_BF16, SPLIT_FP16 = (torch.bfloat16, "20KB"), (torch.float16, "20KB")
MODELS = {
    # name: (model_type, its configuration, (dtype of the saved weights, max_shard_size))
    "gpt2": ("gpt2", gpt2, FP32),
    "gpt2, untied, erf GELU, n_inner, bf16": ("gpt2", gpt2 | dict(
        tie_word_embeddings=False, activation_function="gelu", n_inner=96, layer_norm_epsilon=1e-4), SPLIT_BF16),
    "llama, grouped, theta": ("llama", two | rope("default", 500000.0), SPLIT),
    "llama, tied, biases, fp16": ("llama", llama | tied | dict(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5), SPLIT_FP16),
    # Heads of 8 and this theta have a wavelength between Llama 3's bounds, and others on both sides.
    "llama 3.2, scaled": ("llama", two | dict(max_position_embeddings=16384) | rope(
        "llama3", 500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192), BF16),
    "llama, linear scaling": ("llama", llama | rope("linear", factor=2.0), FP32),
    "llama, biases in attention, head_dim": ("llama", two | dict(attention_bias=True, head_dim=12), FP32),
    "llama, yarn": ("llama", two | rope("yarn", factor=4.0, original_max_position_embeddings=16), FP32),
    "llama, dynamic scaling": ("llama", two | dict(max_position_embeddings=16) | rope("dynamic", factor=2.0), FP32),
    "llama, a large theta, linear scaling by a fraction": ("llama", two | rope("linear", 3580165449.5, factor=1.5), FP32),
    "mistral without a window": ("mistral", two | dict(sliding_window=None), BF16),
    "mistral, a window of 5": ("mistral", two | dict(sliding_window=5, head_dim=16), SPLIT),
    "qwen2": ("qwen2", two, SPLIT),
    "qwen2, tied, a window of 7, bf16": ("qwen2", llama | tied | dict(
        use_sliding_window=True, sliding_window=7, max_window_layers=0), BF16),
    "qwen3": ("qwen3", two | dict(head_dim=16), SPLIT),
    "qwen3, tied, biases, 8 wide heads": ("qwen3", llama | tied | dict(head_dim=8, attention_bias=True), BF16),
    "gemma": ("gemma", two | dict(head_dim=16), SPLIT),
    "gpt-neox": ("gpt_neox", neox, SPLIT),
    "gpt-neox, in turn, tied, tanh GELU, half": ("gpt_neox", neox | tied | dict(
        use_parallel_residual=False, hidden_act="gelu_pytorch_tanh") | rope("default", 5000.0, partial_rotary_factor=0.5), FP16),
    "opt": ("opt", opt, SPLIT),
    "opt, untied, GELU": ("opt", opt | dict(tie_word_embeddings=False, activation_function="gelu"), BF16),
    "phi3": ("phi3", two | dict(pad_token_id=None, sliding_window=9), SPLIT),
    "phi3, a part turns": ("phi3", two | dict(pad_token_id=None) | rope("default", partial_rotary_factor=0.75), FP32),
    "starcoder2": ("starcoder2", two | dict(sliding_window=6), SPLIT),
    "falcon": ("falcon", falcon | dict(new_decoder_architecture=True), SPLIT),
    "bloom": ("bloom", bloom | dict(hidden_size=32, n_head=4), SPLIT),
    "bloom, untied, 6 heads, bf16": ("bloom", bloom | dict(
        hidden_size=48, n_head=6, tie_word_embeddings=False, layer_norm_epsilon=1e-4), BF16),
    "mixtral": ("mixtral", experts | dict(num_local_experts=6), SPLIT),
    "mixtral, tied, a window of 7, head_dim, 3 of 4, bf16": ("mixtral", experts | tied | dict(
        num_experts_per_tok=3, num_local_experts=4, sliding_window=7, head_dim=16), BF16),
    "qwen2-moe, every second layer": ("qwen2_moe", experts | dict(
        num_experts=6, moe_intermediate_size=20, shared_expert_intermediate_size=28, decoder_sparse_step=2), SPLIT),
    "qwen2-moe, weights add up to 1, no biases, fp16": ("qwen2_moe", experts | dict(
        num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=16, norm_topk_prob=True, qkv_bias=False), FP16),
    "qwen3-moe, two layers without experts": ("qwen3_moe", experts | dict(
        head_dim=16, num_experts=6, moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[0, 3]), SPLIT),
    "qwen3-moe, tied, biases, one expert each": ("qwen3_moe", experts | tied | dict(
        num_experts_per_tok=1, head_dim=8, num_experts=4, moe_intermediate_size=16, attention_bias=True,
        use_sliding_window=True, sliding_window=6), BF16),
    "qwen3-moe, one expert whose weight is 1": ("qwen3_moe", experts | dict(
        num_experts_per_tok=1, num_experts=4, moe_intermediate_size=16, norm_topk_prob=True), FP32),
    "olmoe": ("olmoe", experts | dict(num_key_value_heads=6, num_experts=6, pad_token_id=None), SPLIT),
    "olmoe, grouped, biases, weights add up to 1, bf16": ("olmoe", experts | dict(
        num_experts=4, attention_bias=True, norm_topk_prob=True, pad_token_id=None), BF16),
}

ADAPTERS = {
    # name: (model_type, its configuration, the LoRA's)
    "llama, all-linear": ("llama", two, dict(target_modules="all-linear", lora_dropout=0.1)),
    "qwen2, rslora": ("qwen2", two | tied, dict(target_modules=["q_proj", "v_proj", "up_proj"], use_rslora=True)),
    "mixtral": ("mixtral", experts | dict(num_local_experts=4), dict(target_modules=r".*\.self_attn\.[qko]_proj")),
    "qwen2-moe": ("qwen2_moe", experts | dict(
        num_experts=6, moe_intermediate_size=20, shared_expert_intermediate_size=28, decoder_sparse_step=2),
        dict(target_modules=["v_proj", "gate_proj", "down_proj"])),
    "gpt2": ("gpt2", gpt2, dict(target_modules=["mlp.c_fc", "c_proj"], fan_in_fan_out=True)),
    "opt": ("opt", opt, dict(target_modules=["k_proj", "out_proj", "fc1", "fc2"])),
}


def convert(*arguments):
    return our("hf_convert", *arguments)


def on(mesh):
    """The flags of a mesh."""
    tp, pp, ep = map(int, (mesh + ",1").split(",")[:3])
    return ["--local-ranks", tp * pp * ep, "--tensor-model-parallel-size", tp, "--pipeline-model-parallel-size", pp,
            "--expert-model-parallel-size", ep]


RUN = ["--mock-data", "--vocab-size", 131, "--seq-length", SEQUENCE, "--micro-batch-size", 1, "--global-batch-size", 2,
       "--train-iters", 2, "--lr", 1e-2, "--eval-iters", 0]


def random_model(config):
    """Every weight and bias counts, and logits are not small."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            one = norm and config.model_type != "gemma"  # its norms scale by 1 + weight
            parameter.normal_(1.0 if one else 0.0, 0.15)
    return model


def their_logits(folder, tokens, **changes):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                                                    local_files_only=True, **changes)
    expect(not any(info.values()), f"from_pretrained: {info}")
    with torch.no_grad():
        return model.eval()(tokens).logits, model


def same_files(a, b, what):
    names = sorted(f.name for f in a.iterdir())
    expect(names == sorted(f.name for f in b.iterdir()), f"{what}: {names}")
    for name in names:
        expect((a / name).read_bytes() == (b / name).read_bytes(), f"{what}: {name} differs")


def flags_of_run(said, model_type):
    """Those of a short run from what an import made, and of the last line that it said."""
    flags = [*shlex.split(said.splitlines()[-1]), *RUN]  # RUN's --seq-length is shorter and must win
    for name in ("--seq-length", "--max-position-embeddings")[:1 if model_type in ("gpt2", "opt") else 2]:
        at = flags.index(name)
        del flags[at:at + 2]
    if "--max-position-embeddings" not in flags:  # a model without a table takes longer samples
        flags += ["--max-position-embeddings", SEQUENCE]
    return flags


def imported_and_exported(model_type, settings, saved, scratch):
    scratch.mkdir(parents=True)
    config, (dtype, max_shard_size) = transformers.AutoConfig.for_model(model_type, **settings), saved
    tokens = torch.randint(config.vocab_size, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    random_model(config).to(dtype).save_pretrained(scratch / "theirs", max_shard_size=max_shard_size)
    expected, model = their_logits(scratch / "theirs", tokens)
    parts = len(list((scratch / "theirs").glob("*.safetensors")))
    expect((parts > 1) == (max_shard_size != "5GB"), f"{parts} files of weights")

    said = convert("import", scratch / "theirs", scratch / "imported")
    flags = flags_of_run(said, model_type)
    off = {}
    for mesh in MESHES + (EXPERT_MESHES if "--num-experts" in flags else ()):
        logits = our_logits(tokens, scratch, *flags, *on(mesh))
        off[f"imported, {mesh}"] = (logits - expected).abs().max().item()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":  # even so few tokens show how positions are scaled
        unscaled, _ = their_logits(scratch / "theirs", tokens, rope_parameters={"rope_type": "default", "rope_theta": rope["rope_theta"]})
        expect((unscaled - expected).abs().max() > 10 * TOLERANCE, "logits do not depend on the scaling")

    # Generates the likeliest tokens with a key-value cache, by transformers' generate() and by ours.
    begun = tokens[:1, :6]
    text = min(SEQUENCE, getattr(config, "max_position_embeddings", SEQUENCE))  # theirs turns kept keys otherwise beyond it
    likeliest = model.generate(begun, attention_mask=torch.ones_like(begun), max_new_tokens=text - 6, do_sample=False,
                               eos_token_id=None, pad_token_id=0)
    said = our("generate", "--load", scratch / "imported", "--tokenizer-type", "NullTokenizer", "--prompts",
               " ".join(map(str, begun[0].tolist())), "--num-tokens-to-generate", text - 6, "--temperature", 0)
    expect(list(map(int, said.split())) == likeliest[0].tolist(), f"generated {said}, expected {likeliest[0].tolist()}")

    # Exports back without training: the same numbers, bit for bit.
    convert("export", scratch / "imported", scratch / "back", "--max-shard-size", "30KB")
    back, again = their_logits(scratch / "back", tokens)
    for name, parameter in model.named_parameters():
        expect(torch.equal(parameter, again.get_parameter(name)), f"back: {name}")
    expect(torch.equal(back, expected), "back: logits")
    said = again.config.to_dict()
    lost = {key for key, value in model.config.to_dict().items() if value is not None and said.get(key) != value}
    expect(lost <= {"_name_or_path", "max_window_layers", "rope_parameters"}, f"back: config.json has other {lost}")
    expect(len(list((scratch / "back").glob("*.safetensors"))) > 1, "back: one file")
    convert("import", scratch / "back", scratch / "imported-again")
    expect(our("ckpt", "diff", scratch / "imported", scratch / "imported-again").endswith(", 0 differences\n"), "diff")
    our("ckpt", "verify", scratch / "imported")

    # Trains on four ranks, then exports from the ordinary checkpoint, a universal one and weights.
    our("pretrain_gpt", *on("2,1,2" if "--num-experts" in flags else "2,2"), *flags, "--zero-stage", 1, "--save", scratch / "trained")
    convert("export", scratch / "trained", scratch / "exported", "--max-shard-size", "30KB")
    tag = scratch / "trained" / "global_step2"
    our("ds_to_universal", "--input_folder", tag, "--output_folder", f"{tag}_universal")
    convert("export", f"{tag}_universal", scratch / "from-universal", "--max-shard-size", "30KB")
    same_files(scratch / "exported", scratch / "from-universal", "from a universal folder")
    our("zero_to_fp32", scratch / "trained", scratch / "fp32")
    convert("export", scratch / "fp32", scratch / "from-weights", "--config", scratch / "exported" / "config.json",
            "--max-shard-size", "30KB")
    same_files(scratch / "exported", scratch / "from-weights", "from weights")
    trained, _ = their_logits(scratch / "exported", tokens)
    expect((trained - expected).abs().max() > 0.01, "training changed nothing")
    own = [flag for flag in flags if flag not in ("--universal-checkpoint", "--finetune")]
    own[own.index("--load") + 1] = scratch / "trained"
    off["exported"] = (our_logits(tokens, scratch, *own, *on("1,1")) - trained).abs().max().item()

    # An import must describe the cuts of parameters as a run does.
    patterns, parsed = [], [torch.load(f / "mp_rank_00_model_states.pt", weights_only=False)
                            for f in (scratch / "imported" / "global_step0_universal", tag)]
    for metadata in parsed:
        patterns.append({k: v for k, v in metadata["universal_checkpoint_info"].items() if k != "padded_vocab_size"})
    expect(patterns[0] == patterns[1], f"universal_checkpoint_info: {patterns}")
    for name in ("imported", "trained"):
        zero = next(scratch.glob(f"{name}/*_universal/zero"))
        keys = {f.parent.name: {k: v for k, v in torch.load(f, weights_only=False).items() if k != "param"} for f in zero.glob("*/fp32.pt")}
        patterns.append(keys)
    expect(patterns[2] == patterns[3] and patterns[2], "keys of fp32.pt")

    worst = max(off, key=off.get)
    expect(off[worst] <= TOLERANCE, f"logits are off: {off}")
    return f"{parts} files; logits up to {expected.abs().max():.1f}, at most {off[worst]:.1e} off ({worst})"


def adapted(model_type, settings, lora, scratch):
    """An adapter beside its base has PEFT's logits here, also after training. It goes out again bit for bit, as PEFT loads it, and
    merged, as merge_and_unload() does."""
    scratch.mkdir(parents=True)
    config = transformers.AutoConfig.for_model(model_type, **settings)
    tokens = torch.randint(config.vocab_size, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    random_model(config).save_pretrained(scratch / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(scratch / "base")
    theirs = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=6, task_type="CAUSAL_LM", **lora)).eval()
    with torch.no_grad():
        unchanged = theirs(tokens).logits
        for name, parameter in theirs.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0, 0.15)
        expected = theirs(tokens).logits
    expect((expected - unchanged).abs().max() > 0.1, "the adapter changes nothing")
    theirs.save_pretrained(scratch / "adapter")
    flags = flags_of_run(convert("import", scratch / "base", scratch / "imported", "--adapter", scratch / "adapter"), model_type)
    loaded = max((our_logits(tokens, scratch, *flags, *on(mesh)) - expected).abs().max().item() for mesh in MESHES)
    expect(loaded <= TOLERANCE, f"imported: logits {loaded:.1e} off")
    our("ckpt", "verify", scratch / "imported")
    convert("export", scratch / "imported", scratch / "back", "--adapter", scratch / "base")
    there, here = (safetensors.torch.load_file(scratch / name / "adapter_model.safetensors") for name in ("adapter", "back"))
    wrong = list(checks.tensor_differences(here, there))
    back = peft.AutoPeftModelForCausalLM.from_pretrained(scratch / "back").eval()
    with torch.no_grad():
        off = (back(tokens).logits - expected).abs().max().item()
    expect(not wrong and off <= TOLERANCE, f"back: {wrong}, logits {off:.1e} off")
    convert("export", scratch / "imported", scratch / "merged", "--merge")
    merged, model = their_logits(scratch / "merged", tokens)
    off = (merged - expected).abs().max().item()
    weights = dict(theirs.merge_and_unload().named_parameters())
    far = max((parameter - weights[name]).abs().max().item() for name, parameter in model.named_parameters())
    expect(off <= TOLERANCE and far <= 1e-6, f"merged: weights {far:.1e} off, logits {off:.1e}")
    our("pretrain_gpt", *on("2,2"), *flags, "--zero-stage", 1, "--save", scratch / "trained", "--exclude-frozen-parameters")
    convert("export", scratch / "trained", scratch / "trained-adapter", "--adapter", scratch / "base")
    back = peft.AutoPeftModelForCausalLM.from_pretrained(scratch / "trained-adapter").eval()
    our("pretrain_gpt", *on("2,2"), *flags, "--zero-stage", 1, "--save", scratch / "whole")
    convert("export", scratch / "whole", scratch / "trained-merged", "--merge")
    with torch.no_grad():
        trained = back(tokens).logits
    off = max(off, (their_logits(scratch / "trained-merged", tokens)[0] - trained).abs().max().item())
    expect(off <= TOLERANCE and (trained - expected).abs().max() > 0.01, f"trained: logits {off:.1e} off")
    most = expected.abs().max()
    return f"{len(there)} matrices; merged weights {far:.1e} off, logits of up to {most:.1f} {loaded:.1e} off here, {off:.1e} there"


def trained_here(scratch):
    """A mixture of experts that no one imported is a Mixtral, and has its logits there."""
    flags = ["--num-layers", 3, "--hidden-size", 48, "--num-attention-heads", 6, "--max-position-embeddings", SEQUENCE, "--swiglu",
             "--disable-bias-linear", "--normalization", "rmsnorm", "--use-rotary-position-embeddings", "--num-experts", 4,
             "--moe-ffn-hidden-size", 20, "--moe-aux-loss-coeff", 0.01, "--init-method-std", 0.15, *RUN]
    our("pretrain_gpt", *on("2,1"), *flags, "--save", scratch / "trained")
    convert("export", scratch / "trained", scratch / "exported")
    tokens = torch.randint(131, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    theirs, model = their_logits(scratch / "exported", tokens)
    off = (our_logits(tokens, scratch, *flags, "--load", scratch / "trained", *on("1,1")) - theirs).abs().max().item()
    expect(model.config.model_type == "mixtral" and off <= TOLERANCE, f"{model.config.model_type}, {off} off")
    return f"logits up to {theirs.abs().max():.1f}, at most {off:.1e} off"


def tokenizer(scratch):
    """transformers finds the same tokenizer in an export as in the model that was imported."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["the cat sat on the mat"] * 4, vocab_size=270, special_tokens=["<|endoftext|>"])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="<|endoftext|>")
    random_model(transformers.GPT2Config(**gpt2 | dict(vocab_size=len(theirs)))).save_pretrained(scratch / "theirs")
    theirs.save_pretrained(scratch / "theirs")
    convert("import", scratch / "theirs", scratch / "imported")
    our("pretrain_gpt", *on("2,1"), "--load", scratch / "imported", "--universal-checkpoint", "--finetune", *RUN,
        "--vocab-size", len(theirs), "--num-layers", 4, "--hidden-size", 32, "--num-attention-heads", 4,
        "--max-position-embeddings", SEQUENCE, "--save", scratch / "trained")
    convert("export", scratch / "imported", scratch / "back")
    convert("export", scratch / "trained", scratch / "exported", "--tokenizer", scratch / "imported")
    text = "a cat on\nthe mat, zwölf times<|endoftext|>"
    for folder in ("back", "exported"):
        ours = transformers.AutoTokenizer.from_pretrained(scratch / folder, local_files_only=True)
        ids = ours(text)["input_ids"]
        expect(ids == theirs(text)["input_ids"] and ours.decode(ids) == text and ours.eos_token_id == theirs.eos_token_id, f"{folder}: {ids}")
        expect(transformers.AutoModelForCausalLM.from_pretrained(scratch / folder).config.vocab_size == len(ours), folder)
    return f"{len(ids)} tokens"


def speech(scratch):
    """A model with more rows than its tokenizer has tokens: generate finds the tokenizer, begins with its <s>, never draws an id
    that it lacks, stops at an end, and writes their text. It trains so, too."""
    made = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    made.train_from_iterator(["the cat sat on the mat", "a dog ate it"] * 4, vocab_size=270, special_tokens=["<s>", "</s>"])
    made._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, bos_token="<s>", eos_token="</s>")
    rows = len(theirs) + 40
    config = transformers.LlamaConfig(**two | dict(vocab_size=rows, bos_token_id=0, eos_token_id=1))
    model = random_model(config).eval()
    padding = list(range(len(theirs), rows))
    with torch.no_grad():
        model.lm_head.weight[padding] = 10 * model.lm_head.weight[:len(padding)]  # they would often win
    def continued(prompt, ends):
        ids = theirs(prompt, return_tensors="pt")["input_ids"]
        expect(ids[0, 0] == 0, "their prompts begin with <s>")
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, suppress_tokens=padding,
                              eos_token_id=ends, pad_token_id=0)[0, ids.shape[1]:].tolist()

    texts = []
    for prompt in ("the cat", "a dog ate the", "it "):
        whole = continued(prompt, [1])
        for ends in ([1], [1, whole[len(whole) // 2]]):  # another end stops the text earlier
            texts.append((prompt, theirs.decode([i for i in continued(prompt, ends) if i not in ends]), ends))
    model.save_pretrained(scratch / "theirs")
    theirs.save_pretrained(scratch / "theirs")
    for prompt, text, ends in texts:
        (scratch / "theirs" / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": ends}))
        convert("import", scratch / "theirs", scratch / "imported", "--overwrite")
        said = our("generate", "--load", scratch / "imported", "--prompts", prompt, "--num-tokens-to-generate", 12,
                   "--temperature", 0)
        expect(said == prompt + text + "\n", f"said {said!r}, expected {prompt + text!r}, which ends at {ends}")
    return f"{len(texts)} texts, the shortest of {min(len(text) for _, text, _ in texts)} letters"


def refusals(scratch):
    """What transformers can say and our model can't be is refused by name, and so is the other way round."""
    config = transformers.LlamaConfig(**two)
    random_model(config).save_pretrained(scratch / "theirs")
    written = json.loads((scratch / "theirs" / "config.json").read_text())
    cases = {"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "rope_theta": 10000.0}, "head_dim": 0,
             "hidden_act": "gelu", "attention_bias": 1, "model_type": "phi"}
    for key, value in cases.items():
        (scratch / "theirs" / "config.json").write_text(json.dumps(written | {key: value}))
        said = refusal("hf_convert", "import", scratch / "theirs", scratch / "out")
        expect(re.search(rf"config\.json: '{key}.*expected", said), f"{key}: {said}")
    expect(not (scratch / "out").exists(), "a refused import has left something")
    (scratch / "theirs" / "config.json").write_text(json.dumps(written))
    flags = convert("import", scratch / "theirs", scratch / "out").splitlines()[-1].removesuffix(" --finetune").split()
    said = refusal("pretrain_gpt", *flags, *RUN[:3], "--train-iters", 1, "--lr", 1e-3)
    expect("--finetune starts at step 0 from its weights" in said, f"resumed: {said}")
    our("pretrain_gpt", *on("1,1"), *flags, *RUN[:3], "--train-iters", 1, "--lr", 1e-3, "--no-load-optim", "--eval-iters", 0)
    flags = ["--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 2, "--max-position-embeddings", SEQUENCE]
    our("pretrain_gpt", *on("1,1"), *flags, *RUN, "--swiglu", "--ffn-hidden-size", 32, "--save", scratch / "hybrid")
    said = refusal("hf_convert", "export", scratch / "hybrid", scratch / "no")
    expect("GPT-2: no --swiglu" in said and "Llama: --normalization rmsnorm" in said, f"hybrid: {said}")
    return f"{len(cases)} of config.json, 2 of ours"


def class_defaults(_):
    """The table with which unit tests compare the import's defaults is that of transformers' config classes."""
    table = json.loads((pathlib.Path(__file__).resolve().parents[1] / "fixtures/hugging_face/class_defaults.json").read_text())
    for model_type, values in table.items():
        config = transformers.AutoConfig.for_model(model_type)
        theirs = {field.name: field.default for field in dataclasses.fields(config)}
        for key, value in values.items():
            if key == "rope_parameters":
                theirs[key] = {name: config.rope_parameters[name] for name in value}
            expect(theirs[key] == value, f"{model_type}: {key} is {theirs[key]}, {value} in the table")
    return f"{len(table)} classes, {sum(map(len, table.values()))} values"


def main():
    works = {name: lambda folder, model=model: imported_and_exported(*model, folder) for name, model in MODELS.items()}
    works |= {f"adapter: {name}": lambda folder, model=model: adapted(*model, folder) for name, model in ADAPTERS.items()}
    works |= {"trained here": trained_here, "a tokenizer": tokenizer, "speech": speech, "refusals": refusals, "defaults": class_defaults}
    chosen = [name for name in works if name.startswith(sys.argv[2] if len(sys.argv) > 2 else "")]
    cases = {name: (0, works[name], pathlib.Path("hf") / str(number)) for number, name in enumerate(chosen)}
    checks.check(f"models of transformers {transformers.__version__}", cases)


if __name__ == "__main__":
    main()
