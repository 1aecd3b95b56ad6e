#!/usr/bin/env python3
"""Small random models of transformers, into our checkpoints and back:

    hf_convert.py FOLDER_OF_EXECUTABLES [BEGINNING_OF_A_MODELS_NAME]

Each is saved by transformers, imported, and has transformers' logits here, on one rank and on tp 2 x pp 2, experts also on ep 2, and
the tokens of its generate() at temperature 0. It is trained for two steps on four ranks and saved; what is exported from that
checkpoint has the logits that it has here. One line per model; exits 1 if anything fails or a logit is off by more than TOLERANCE.
"""
import dataclasses
import json
import logging
import pathlib
import re
import shlex
import subprocess
import sys
import traceback

logging.disable(logging.WARNING)

import safetensors.torch
import tokenizers
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

PROGRAMS = pathlib.Path(sys.argv[1])
TOLERANCE = 1e-5
SEQUENCE, BATCH = 24, 3
MESHES = ("1,1", "2,2")  # tp,pp
EXPERT_MESHES = ("1,1,2", "2,1,2")  # tp,pp,ep

gpt2 = dict(vocab_size=131, n_positions=SEQUENCE, n_embd=32, n_layer=4, n_head=4)
llama = dict(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, intermediate_size=40,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
opt = dict(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, ffn_dim=40, word_embed_proj_dim=48,
           max_position_embeddings=64)
bloom = dict(vocab_size=131, n_layer=4)
experts = llama | dict(num_key_value_heads=2, num_experts_per_tok=2)
MODELS = {
    # name: (config, dtype of the saved weights, max_shard_size)
    "gpt2": (transformers.GPT2Config(**gpt2), torch.float32, "5GB"),
    "gpt2, untied, erf GELU, n_inner, bf16": (transformers.GPT2Config(
        **gpt2, tie_word_embeddings=False, activation_function="gelu", n_inner=96, layer_norm_epsilon=1e-4), torch.bfloat16, "20KB"),
    "llama, grouped, theta": (transformers.LlamaConfig(
        **llama, num_key_value_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), torch.float32, "20KB"),
    "llama, tied, biases, fp16": (transformers.LlamaConfig(
        **llama, num_key_value_heads=6, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5),
        torch.float16, "20KB"),
    # Heads of 8 and this theta have a wavelength between Llama 3's bounds, and others on both sides.
    "llama 3.2, scaled": (transformers.LlamaConfig(**llama | dict(max_position_embeddings=16384), num_key_value_heads=2, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}), torch.bfloat16, "5GB"),
    "llama, linear scaling": (transformers.LlamaConfig(**llama, num_key_value_heads=6, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}), torch.float32, "5GB"),
    "llama, biases in attention, head_dim": (transformers.LlamaConfig(
        **llama, num_key_value_heads=2, attention_bias=True, head_dim=12), torch.float32, "5GB"),
    "llama, yarn": (transformers.LlamaConfig(**llama, num_key_value_heads=2, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}), torch.float32, "5GB"),
    "llama, dynamic scaling": (transformers.LlamaConfig(**llama | dict(max_position_embeddings=16), num_key_value_heads=2,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}), torch.float32, "5GB"),
    "llama, a large theta, linear scaling by a fraction": (transformers.LlamaConfig(**llama, num_key_value_heads=2, rope_parameters={
        "rope_type": "linear", "rope_theta": 3580165449.5, "factor": 1.5}), torch.float32, "5GB"),
    "mistral without a window": (transformers.MistralConfig(**llama, num_key_value_heads=2, sliding_window=None), torch.bfloat16, "5GB"),
    "mistral, a window of 5": (transformers.MistralConfig(**llama, num_key_value_heads=2, sliding_window=5, head_dim=16),
                               torch.float32, "20KB"),
    "qwen2": (transformers.Qwen2Config(**llama, num_key_value_heads=2), torch.float32, "20KB"),
    "qwen2, tied, a window of 7, bf16": (transformers.Qwen2Config(
        **llama, num_key_value_heads=6, tie_word_embeddings=True, use_sliding_window=True, sliding_window=7, max_window_layers=0),
        torch.bfloat16, "5GB"),
    "qwen3": (transformers.Qwen3Config(**llama, num_key_value_heads=2, head_dim=16), torch.float32, "20KB"),
    "qwen3, tied, biases, 8 wide heads": (transformers.Qwen3Config(
        **llama, num_key_value_heads=6, head_dim=8, tie_word_embeddings=True, attention_bias=True), torch.bfloat16, "5GB"),
    "gemma": (transformers.GemmaConfig(**llama, num_key_value_heads=2, head_dim=16), torch.float32, "20KB"),
    "gpt-neox": (transformers.GPTNeoXConfig(**llama), torch.float32, "20KB"),
    "gpt-neox, in turn, tied, tanh GELU, half": (transformers.GPTNeoXConfig(
        **llama, use_parallel_residual=False, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}), torch.float16, "5GB"),
    "opt": (transformers.OPTConfig(**opt), torch.float32, "20KB"),
    "opt, untied, GELU": (transformers.OPTConfig(**opt, tie_word_embeddings=False, activation_function="gelu"), torch.bfloat16, "5GB"),
    "phi3": (transformers.Phi3Config(**llama, num_key_value_heads=2, pad_token_id=None, sliding_window=9), torch.float32, "20KB"),
    "phi3, a part turns": (transformers.Phi3Config(
        **llama, num_key_value_heads=2, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}), torch.float32, "5GB"),
    "starcoder2": (transformers.Starcoder2Config(**llama, num_key_value_heads=2, sliding_window=6), torch.float32, "20KB"),
    "falcon": (transformers.FalconConfig(vocab_size=131, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, num_kv_heads=2,
                                         new_decoder_architecture=True), torch.float32, "20KB"),
    "bloom": (transformers.BloomConfig(**bloom, hidden_size=32, n_head=4), torch.float32, "20KB"),
    "bloom, untied, 6 heads, bf16": (transformers.BloomConfig(
        **bloom, hidden_size=48, n_head=6, tie_word_embeddings=False, layer_norm_epsilon=1e-4), torch.bfloat16, "5GB"),
    "mixtral": (transformers.MixtralConfig(**experts, num_local_experts=6), torch.float32, "20KB"),
    "mixtral, tied, a window of 7, head_dim, 3 of 4, bf16": (transformers.MixtralConfig(
        **experts | dict(num_experts_per_tok=3), num_local_experts=4, sliding_window=7, head_dim=16, tie_word_embeddings=True),
        torch.bfloat16, "5GB"),
    "qwen2-moe, every second layer": (transformers.Qwen2MoeConfig(
        **experts, num_experts=6, moe_intermediate_size=20, shared_expert_intermediate_size=28, decoder_sparse_step=2),
        torch.float32, "20KB"),
    "qwen2-moe, weights add up to 1, no biases, fp16": (transformers.Qwen2MoeConfig(
        **experts, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=16, norm_topk_prob=True, qkv_bias=False),
        torch.float16, "5GB"),
    "qwen3-moe, two layers without experts": (transformers.Qwen3MoeConfig(
        **experts, head_dim=16, num_experts=6, moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[0, 3]),
        torch.float32, "20KB"),
    "qwen3-moe, tied, biases, one expert each": (transformers.Qwen3MoeConfig(
        **experts | dict(num_experts_per_tok=1), head_dim=8, num_experts=4, moe_intermediate_size=16, attention_bias=True,
        tie_word_embeddings=True, use_sliding_window=True, sliding_window=6), torch.bfloat16, "5GB"),
    "qwen3-moe, one expert whose weight is 1": (transformers.Qwen3MoeConfig(
        **experts | dict(num_experts_per_tok=1), num_experts=4, moe_intermediate_size=16, norm_topk_prob=True), torch.float32, "5GB"),
    "olmoe": (transformers.OlmoeConfig(**experts | dict(num_key_value_heads=6), num_experts=6, pad_token_id=None), torch.float32, "20KB"),
    "olmoe, grouped, biases, weights add up to 1, bf16": (transformers.OlmoeConfig(
        **experts, num_experts=4, attention_bias=True, norm_topk_prob=True, pad_token_id=None), torch.bfloat16, "5GB"),
}


class Mismatch(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Mismatch(what)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    expect(done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def convert(*arguments):
    return run(PROGRAMS / "hf_convert", *arguments)


def on(mesh, program, *arguments):
    tp, pp, ep = map(int, (mesh + ",1").split(",")[:3])
    return run(PROGRAMS / program, *arguments, "--local-ranks", tp * pp * ep, "--tensor-model-parallel-size", tp,
               "--pipeline-model-parallel-size", pp, "--expert-model-parallel-size", ep)


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


def our_logits(mesh, flags, tokens, scratch):
    tokens.numpy().tofile(scratch / "tokens")
    (scratch / "logits").unlink(missing_ok=True)
    on(mesh, "gpt_logits", scratch / "tokens", scratch / "logits", *flags)
    return torch.frombuffer(bytearray((scratch / "logits").read_bytes()), dtype=torch.float32).view(*tokens.shape, -1)


def same_files(a, b, what):
    names = sorted(f.name for f in a.iterdir())
    expect(names == sorted(f.name for f in b.iterdir()), f"{what}: {names}")
    for name in names:
        expect((a / name).read_bytes() == (b / name).read_bytes(), f"{what}: {name} differs")


def check(config, dtype, max_shard_size, scratch):
    scratch.mkdir(parents=True)
    tokens = torch.randint(config.vocab_size, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    random_model(config).to(dtype).save_pretrained(scratch / "theirs", max_shard_size=max_shard_size)
    expected, model = their_logits(scratch / "theirs", tokens)
    parts = len(list((scratch / "theirs").glob("*.safetensors")))
    expect((parts > 1) == (max_shard_size != "5GB"), f"{parts} files of weights")

    said = convert("import", scratch / "theirs", scratch / "imported")
    flags = [*shlex.split(said.splitlines()[-1]), *RUN]  # RUN's --seq-length is shorter and must win
    for name in ("--seq-length", "--max-position-embeddings")[:1 if config.model_type in ("gpt2", "opt") else 2]:
        at = flags.index(name)
        del flags[at:at + 2]
    if "--max-position-embeddings" not in flags:  # a model without a table takes longer samples
        flags += ["--max-position-embeddings", SEQUENCE]
    off = {}
    for mesh in MESHES + (EXPERT_MESHES if "--num-experts" in flags else ()):
        logits = our_logits(mesh, flags, tokens, scratch)
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
    said = run(PROGRAMS / "generate", "--load", scratch / "imported", "--tokenizer-type", "NullTokenizer", "--prompts",
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
    expect(run(PROGRAMS / "ckpt", "diff", scratch / "imported", scratch / "imported-again").endswith(", 0 differences\n"), "diff")
    run(PROGRAMS / "ckpt", "verify", scratch / "imported")

    # Trains on four ranks, then exports from the ordinary checkpoint, a universal one and weights.
    on("2,1,2" if "--num-experts" in flags else "2,2", "pretrain_gpt", *flags, "--zero-stage", 1, "--save", scratch / "trained")
    convert("export", scratch / "trained", scratch / "exported", "--max-shard-size", "30KB")
    tag = scratch / "trained" / "global_step2"
    run(PROGRAMS / "ds_to_universal", "--input_folder", tag, "--output_folder", f"{tag}_universal")
    convert("export", f"{tag}_universal", scratch / "from-universal", "--max-shard-size", "30KB")
    same_files(scratch / "exported", scratch / "from-universal", "from a universal folder")
    run(PROGRAMS / "zero_to_fp32", scratch / "trained", scratch / "fp32")
    convert("export", scratch / "fp32", scratch / "from-weights", "--config", scratch / "exported" / "config.json",
            "--max-shard-size", "30KB")
    same_files(scratch / "exported", scratch / "from-weights", "from weights")
    trained, _ = their_logits(scratch / "exported", tokens)
    expect((trained - expected).abs().max() > 0.01, "training changed nothing")
    own = [flag for flag in flags if flag not in ("--universal-checkpoint", "--finetune")]
    own[own.index("--load") + 1] = scratch / "trained"
    off["exported"] = (our_logits("1,1", own, tokens, scratch) - trained).abs().max().item()

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


def trained_here(scratch):
    """A mixture of experts that no one imported is a Mixtral, and has its logits there."""
    flags = ["--num-layers", 3, "--hidden-size", 48, "--num-attention-heads", 6, "--max-position-embeddings", SEQUENCE, "--swiglu",
             "--disable-bias-linear", "--normalization", "rmsnorm", "--use-rotary-position-embeddings", "--num-experts", 4,
             "--moe-ffn-hidden-size", 20, "--moe-aux-loss-coeff", 0.01, "--init-method-std", 0.15, *RUN]
    on("2,1", "pretrain_gpt", *flags, "--save", scratch / "trained")
    convert("export", scratch / "trained", scratch / "exported")
    tokens = torch.randint(131, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    theirs, model = their_logits(scratch / "exported", tokens)
    off = (our_logits("1,1", [*flags, "--load", scratch / "trained"], tokens, scratch) - theirs).abs().max().item()
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
    on("2,1", "pretrain_gpt", "--load", scratch / "imported", "--universal-checkpoint", "--finetune", *RUN, "--vocab-size", len(theirs),
       "--num-layers", 4, "--hidden-size", 32, "--num-attention-heads", 4, "--max-position-embeddings", SEQUENCE, "--save", scratch / "trained")
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
    config = transformers.LlamaConfig(**llama | dict(vocab_size=rows, bos_token_id=0, eos_token_id=1), num_key_value_heads=2)
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
        said = run(PROGRAMS / "generate", "--load", scratch / "imported", "--prompts", prompt, "--num-tokens-to-generate", 12,
                   "--temperature", 0)
        expect(said == prompt + text + "\n", f"said {said!r}, expected {prompt + text!r}, which ends at {ends}")
    return f"{len(texts)} texts, the shortest of {min(len(text) for _, text, _ in texts)} letters"


def refusals(scratch):
    """What transformers can say and our model can't be is refused by name, and so is the other way round."""
    config = transformers.LlamaConfig(**llama, num_key_value_heads=2)
    random_model(config).save_pretrained(scratch / "theirs")
    written = json.loads((scratch / "theirs" / "config.json").read_text())
    cases = {"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "rope_theta": 10000.0}, "head_dim": 0,
             "hidden_act": "gelu", "attention_bias": 1, "model_type": "phi"}
    for key, value in cases.items():
        (scratch / "theirs" / "config.json").write_text(json.dumps(written | {key: value}))
        done = subprocess.run([PROGRAMS / "hf_convert", "import", scratch / "theirs", scratch / "out"], capture_output=True, text=True)
        expect(done.returncode == 1 and re.search(rf"config\.json: '{key}.*expected", done.stderr), f"{key}: {done.stderr}")
    expect(not (scratch / "out").exists(), "a refused import has left something")
    (scratch / "theirs" / "config.json").write_text(json.dumps(written))
    flags = convert("import", scratch / "theirs", scratch / "out").splitlines()[-1].removesuffix(" --finetune").split()
    done = subprocess.run([PROGRAMS / "pretrain_gpt", *flags, *map(str, RUN[:3]), "--train-iters", "1", "--lr", "1e-3"],
                          capture_output=True, text=True)
    expect(done.returncode == 1 and "--finetune starts at step 0 from its weights" in done.stderr, f"resumed: {done.stderr}")
    on("1,1", "pretrain_gpt", *flags, *RUN[:3], "--train-iters", 1, "--lr", 1e-3, "--no-load-optim", "--eval-iters", 0)
    flags = ["--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 2, "--max-position-embeddings", SEQUENCE]
    on("1,1", "pretrain_gpt", *flags, *RUN, "--swiglu", "--ffn-hidden-size", 32, "--save", scratch / "hybrid")
    done = subprocess.run([PROGRAMS / "hf_convert", "export", scratch / "hybrid", scratch / "no"], capture_output=True, text=True)
    expect(done.returncode == 1 and "GPT-2: no --swiglu" in done.stderr and "Llama: --normalization rmsnorm" in done.stderr,
           f"hybrid: {done.stderr}")
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
    print(f"models of transformers {transformers.__version__}, imported, trained and exported:")
    failed = 0
    cases = [(name, lambda folder, model=model: check(*model, folder)) for name, model in MODELS.items()]
    cases += [("trained here", trained_here), ("a tokenizer", tokenizer), ("speech", speech), ("refusals", refusals), ("defaults", class_defaults)]
    begins = sys.argv[2] if len(sys.argv) > 2 else ""
    for number, (name, work) in enumerate(case for case in cases if case[0].startswith(begins)):
        folder = pathlib.Path("hf") / str(number)
        folder.parent.mkdir(exist_ok=True)
        try:
            print(f"ok: {name}: {work(folder)}", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
            failed += 1
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
