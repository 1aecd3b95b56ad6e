#!/usr/bin/env python3
"""Compares tokenizer.json with the tokenizers package, in the layouts of well-known models.

  hf_tokenizers.py fixtures FOLDER            writes small files for tests/data: LAYOUT.json and LAYOUT.golden.json
  hf_tokenizers.py compare FOLDER PROGRAM     trains larger ones, and compares ids, decoded text and speed of 30,000 lines
                                           with those of PROGRAM (tokenize_lines)
  hf_tokenizers.py packages FOLDER PROGRAM    compares folders, whose files add tokens to a tokenizer.json, with AutoTokenizer

Each layout has its model's normalizer, pre-tokenizer, decoder, post-processor and added tokens. Its vocabulary is
trained here, on text made up from a seed and on licence texts, or the repository's own pages for larger ones.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ["[\r\n]", "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
            "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+"]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(add_prefix_space=False, use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def template(bos, eos, tokens):
    single = [bos] * bool(bos) + ["$A"] + [eos] * bool(eos)
    return processors.TemplateProcessing(single=" ".join(single), special_tokens=[(t, i) for i, t in enumerate(tokens)
                                                                                  if t in (bos, eos)])


def specials(*tokens, **how):
    return [AddedToken(token, special=True, normalized=False, **how) for token in tokens]


def bytes_of(name, special, **parts):
    """A layout whose tokens are bytes, as GPT-2's are."""
    return dict(name=name, model=models.BPE(ignore_merges=parts.pop("ignore_merges", False)), special=special, alphabet=BYTES,
                decoder=decoders.ByteLevel(), **parts)


def pieces_of(name, special, **parts):
    """A layout of a BPE as SentencePiece has it, with bytes for what it lacks."""
    return dict(name=name, model=models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), special=special + FALLBACK,
                train_with=pre_tokenizers.Metaspace(), **parts)


def layouts():
    """Yields name, model, trainer's special tokens, parts, and tokens that are added after training."""
    unigram, sequence = models.Unigram, pre_tokenizers.Sequence
    three, five, padded = ["<unk>", "<s>", "</s>"], ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ["<pad>", "<eos>", "<bos>", "<unk>"]
    from_pieces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    llama_decoder = decoders.Sequence([*from_pieces, decoders.Strip(" ", 1, 0)])
    yield bytes_of("gpt2", ["<|endoftext|>"], pre_tokenizer=byte_level(), post_processor=processors.ByteLevel(trim_offsets=False))
    yield pieces_of("llama2", three, added=specials(*three), decoder=llama_decoder, post_processor=template("<s>", None, three),
                    normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    yield bytes_of("llama3", ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True,
                   pre_tokenizer=sequence([split(LLAMA3), byte_level(use_regex=False)]),
                   added=specials("<|eot_id|>", "<|start_header_id|>"), post_processor=processors.Sequence([
                       processors.ByteLevel(trim_offsets=True), template("<|begin_of_text|>", None, ["<|begin_of_text|>"])]))
    yield bytes_of("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer=normalizers.NFC(),
                   pre_tokenizer=sequence([split(QWEN2), byte_level(use_regex=False)]),
                   post_processor=processors.ByteLevel(trim_offsets=False))
    yield bytes_of("smollm", ["<|endoftext|>", "<|im_start|>"],
                   pre_tokenizer=sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]))
    yield bytes_of("neox", ["<|endoftext|>", "<|padding|>"], normalizer=normalizers.NFC(), pre_tokenizer=byte_level(),
                   post_processor=processors.ByteLevel(), added=[AddedToken(" " * n, normalized=True) for n in range(12, 1, -1)])
    yield pieces_of("gemma", padded, normalizer=normalizers.Replace(" ", "▁"), decoder=decoders.Sequence(from_pieces),
                    added=specials(*padded) + [AddedToken("\n" * n, normalized=False) for n in range(2, 6)] +
                    specials("<mask>", lstrip=True),
                    pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"), post_processor=template("<bos>", None, padded))
    yield pieces_of("mistral", five, added=specials(*five), decoder=llama_decoder, post_processor=template("<s>", None, three),
                    pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    yield bytes_of("nemo", five, ignore_merges=True, pre_tokenizer=sequence([split(NEMO), byte_level(use_regex=False)]),
                   post_processor=template("<s>", None, three))
    yield dict(name="t5", model=unigram(), special=["<pad>", "</s>", "<unk>"], charsmap=True,
               normalizers=[normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")],
               pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace(),
               added=specials("<extra_id_0>", lstrip=True, rstrip=True), post_processor=template(None, "</s>", ["<pad>", "</s>"]))
    yield dict(name="xlnet", model=unigram(), special=[*three, "<cls>", "<sep>"],
               normalizer=normalizers.Sequence([
                   normalizers.Nmt(), normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                   normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")]),
               pre_tokenizer=sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
               decoder=decoders.Metaspace(),
               added=[AddedToken("Mesh", single_word=True, normalized=True), AddedToken("É", normalized=True)])
    yield dict(name="bytes_unigram", model=unigram(), special=["<unk>", "</s>"] + FALLBACK, byte_fallback=True,
               added=specials("<unk>", "</s>"), pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never"),
               decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]))
    bos = "<｜begin▁of▁sentence｜>"
    yield bytes_of("deepseek", [bos, "<｜end▁of▁sentence｜>"], post_processor=template(bos, None, [bos]), pre_tokenizer=sequence([
        *map(split, DEEPSEEK), pre_tokenizers.Digits(True), byte_level(use_regex=False)]))
    yield bytes_of("falcon", ["<|endoftext|>", ">>TITLE<<"], pre_tokenizer=sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(), split("[0-9][0-9][0-9]")]))
    yield dict(name="words", model=models.BPE(unk_token="<unk>"), special=["<unk>", "</s>"], normalizer=normalizers.NFKC(),
               pre_tokenizer=sequence([
                   pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(), split(r"\b\d|[^\s_]-|\S\u0301", "removed", True),
                   pre_tokenizers.Split("ing", "merged_with_next"), split(r"(?<=\p{Greek})|\p{Han}", "contiguous")]))


SCRIPTS = [
    *4 * [(0x20, 0x7E)], (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5F4),
    (0x620, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0x1100, 0x11FF), (0x1E00, 0x1FFE), (0x2000, 0x206F),
    (0x2070, 0x218B), (0x2460, 0x24FF), (0x2581, 0x2582), (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF),
    (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F)]
SPACES = [
    " ", "  ", "   ", "\n", "\r\n", "\n\n\n", "\t", "\xa0", "\u3000", "\u2003", "\x85", "\u180e", "\u200b", "\x1c",
    "\x0b", "\x0c", "\u2028", " \n ", "             "]
PARTS = [
    "don't", "WE'LL", "I'M", "heſs", "x_y", "naïve", "cafe\u0301", "Å", "ﬁne", "½", "²", "١٢٣", "IX", "Ⅸ", "12345",
    "3.14159", "1,000", "0x1F", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "한국어", "中文字", "日本語", "ばか", "Ελληνικά", "Привет",
    "שלום", "مرحبا", "हिन\u094dदी", "ไทย", "İstanbul", "straße", "...", "--", "!!", "<b>", "</s>", "<s>", "<unk>",
    "<|endoftext|>", "<0x41>", "▁", "▁▁a", "Mesh", "Meshes", "É", "É", "``", "http://a.b/c?d=e&f",
    "for (int i = 0; i < n; ++i) {", "    return x;", "\tdef f(a, *b):", "#include <vector>", "[INST]", "[/INST]",
    "<extra_id_0>", "<mask>", "<|eot_id|>", "<|im_start|>", ">>TITLE<<", "ing", "ingingx", "\u0301", "\u200d",
    "a\u0300\u0301", "가", "\ufeff", "�", "e-mail", "_a_b", "ａｂｃ", "㌀", "Dž", "’s", "‘q’"]


def pages():
    for path in sorted(REPOSITORY.rglob("*.md")) + sorted((REPOSITORY / "framework").rglob("*.h")):
        if "build" not in path.parts:
            yield from path.read_text().splitlines()


def made_up(rng):
    words = []
    for _ in range(rng.randrange(12)):
        low, high = rng.choice(SCRIPTS)
        word = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))
        words.append(rng.choice([word, rng.choice(PARTS), rng.choice(PARTS)]) + rng.choice(SPACES[:1] * 8 + SPACES + [""] * 3))
    return "".join(words)


def texts(count, seed, own):
    rng = random.Random(seed)
    return PARTS + SPACES + [rng.choice(own) if rng.random() < 0.4 else made_up(rng) for _ in range(count)]


def train(layout, size, corpus):
    tokenizer = Tokenizer(layout["model"])
    if layout.get("charsmap"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(CHARSMAP), *layout["normalizers"]])
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        if layout.get(part) is not None:
            setattr(tokenizer, part, layout[part])
    if "train_with" in layout:
        tokenizer.pre_tokenizer = layout["train_with"]
    kind = trainers.BpeTrainer if isinstance(layout["model"], models.BPE) else trainers.UnigramTrainer
    more = {"unk_token": "<unk>"} if kind is trainers.UnigramTrainer else {"limit_alphabet": 256}
    if kind is trainers.UnigramTrainer:  # which needs all characters in its vocabulary
        corpus = [text for text in corpus if all(ord(c) < 0x180 for c in text)]
    tokenizer.train_from_iterator(corpus, kind(vocab_size=size, special_tokens=layout["special"], show_progress=False,
                                               initial_alphabet=layout.get("alphabet", []), **more))
    text = json.loads(tokenizer.to_str())
    if "train_with" in layout:
        text["pre_tokenizer"] = None
    if "<0x00>" in layout["special"]:  # the model's own tokens, and none that are found in the text
        text["added_tokens"] = []
    if layout.get("byte_fallback"):
        text["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(text))
    if "train_with" in layout and layout.get("pre_tokenizer") is not None:
        tokenizer.pre_tokenizer = layout["pre_tokenizer"]
    for token in layout.get("added", []):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def charsmap():
    """A small map of SentencePiece: a trie in Darts-clone's layout over a few replacements."""
    rules = {"ﬁ": "fi", "½": "1/2", "Å": "Å", "\u3000": " ", "\t": " ", "\u00a0": " ", "ａ": "a", "ｂ": "b", "ｃ": "c",
             "é": "é", "e\u0301": "é", "\u200b": "", "㌀": "アパート", "가": "가", "\x1c": ""}
    blob, places = b"\0", {}
    for key, value in rules.items():
        places[key.encode()] = len(blob)
        blob += value.encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(prefix, node):
        children = sorted({key[len(prefix)] if len(key) > len(prefix) else 0 for key in places if key.startswith(prefix)})
        offset = 1
        while any((node ^ offset ^ child) in used for child in children) or offset >= 1 << 21:
            offset += 1
        units[node] |= offset << 10
        for child in children:
            used.add(node ^ offset ^ child)
        for child in children:
            at = node ^ offset ^ child
            if child == 0:
                units[at] = 1 << 31 | places[prefix]
                units[node] |= 1 << 8
            else:
                units[at] = child
                place(prefix + bytes([child]), at)

    place(b"", 0)
    trie = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range((max(units) | 0xFF) + 1))
    return len(trie).to_bytes(4, "little") + trie + blob


CHARSMAP = charsmap()


def golden(tokenizer, lines):
    rows = []
    for text in lines:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        rows.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
    return rows


def fixtures(folder):
    documents = (REPOSITORY / "tests/fixtures/data/text.jsonl").read_text().splitlines()
    own = [line for text in documents for line in json.loads(text)["text"].splitlines() if line.strip()]
    corpus = own + texts(3000, 1, own)
    lines = texts(60, 2, own)
    for layout in layouts():
        size = 800 if layout["special"][-1] == "<0xFF>" or "alphabet" in layout else 500
        tokenizer = train(layout, size, corpus)
        (folder / f"{layout['name']}.json").write_text(tokenizer.to_str() + "\n")
        with open(folder / f"{layout['name']}.golden.json", "w") as file:
            file.write("[" + ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":"))
                                        for row in golden(tokenizer, lines)) + "]\n")


def ours(folder, program, model, lines):
    """What tokenize_lines says, and [ids, decoded text] of each line."""
    (folder / "lines").write_text("".join(json.dumps(text) + "\n" for text in lines))
    ran = subprocess.run([program, "HFTokenizer", model, folder / "lines", folder / "result"], capture_output=True, text=True)
    if ran.returncode:
        return {"error": ran.stderr}, []
    return json.loads(ran.stdout), [json.loads(line) for line in open(folder / "result")]


def compare(folder, program, *only):
    own = [line for line in pages() if line.strip()]
    corpus, lines = own + texts(8000, 3, own), texts(30000, 4, own)
    paragraphs = ["\n".join(own[i:i + 40]) for i in range(0, len(own), 40)]
    differ = 0
    for layout in layouts():
        if only and layout["name"] not in only:
            continue
        path = folder / f"{layout['name']}.json"
        if not path.exists():
            train(layout, 8000, corpus).save(str(path))
        tokenizer = Tokenizer.from_file(str(path))
        speeds = []
        for what, each in (("lines", lines), ("pages", paragraphs)):
            said, rows = ours(folder, program, path, each)
            assert rows, said
            distinct = list(dict.fromkeys(each))  # ours tokenizes every text, also those that it has seen
            start = time.perf_counter()
            ids = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in distinct}
            seconds = time.perf_counter() - start
            theirs = {text: [ids[text], tokenizer.decode(ids[text], skip_special_tokens=False)] for text in distinct}
            size, distinct_size = (sum(len(text.encode()) for text in group) / 1e6 for group in (each, distinct))
            speeds.append(f"{what} {size / said['seconds']:.1f} MB/s, the package {distinct_size / seconds:.1f} MB/s")
            for text, row in zip(each, rows, strict=True):
                if row != theirs[text]:
                    differ += 1
                    if differ < 20:
                        print(f"{layout['name']}: {text!r}\n  {theirs[text]!r}\n  {row!r}")
        print(f"{layout['name']}: {tokenizer.get_vocab_size()} tokens; " + "; ".join(speeds), flush=True)
    if differ:
        sys.exit(f"FAIL: {differ} lines differ")


NEW = ["<x>", "<y>", "<z>", "<|w|>", "the", " of ", "É", "in"]
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token", "a_token"]


def token(rng, content, typed):
    flags = {flag: rng.random() < 0.3 for flag in ("lstrip", "rstrip", "single_word", "normalized")}
    return {"content": content, **flags} | ({"__type": "AddedToken"} if typed else {})


def some(rng, part):
    return [content for content in rng.sample(NEW, len(NEW)) if rng.random() < part]


def made_up_files(rng):
    """Files beside a tokenizer.json that name tokens in every way that transformers has had."""
    config = {"tokenizer_class": rng.choice(["PreTrainedTokenizerFast", "TokenizersBackend"])}
    files = {"tokenizer_config.json": config}
    if rng.random() < 0.5:
        config["added_tokens_decoder"] = {
            str(rng.randrange(3000)): token(rng, content, False) | {"special": rng.random() < 0.5} for content in some(rng, 0.3)}
    for name in rng.sample(NAMES, len(NAMES)):
        if rng.random() < 0.2:
            content = rng.choice(NEW)
            config[name] = content if rng.random() < 0.5 else token(rng, content, True) | {"special": rng.random() < 0.5}
    extra = some(rng, 0.2)
    kind = rng.choice(["extra_special_tokens", "additional_special_tokens", "dict", ""])
    if kind == "dict":
        config["extra_special_tokens"] = {f"{content}_token": content for content in extra}
    elif kind:
        config[kind] = [content if rng.random() < 0.5 else token(rng, content, True) | {"special": True} for content in extra]
    if rng.random() < 0.3:
        files["added_tokens.json"] = {content: rng.randrange(3000) for content in some(rng, 0.3)}
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = {name: rng.choice([content, token(rng, content, False)])
                                            for name, content in zip(rng.sample(NAMES, len(NAMES)), some(rng, 0.4))}
        files["special_tokens_map.json"]["additional_special_tokens"] = some(rng, 0.2)
    if rng.random() < 0.2:
        config["split_special_tokens"] = True
    return files


def around(*single):
    return processors.TemplateProcessing(single=" ".join(single), special_tokens=[(t, i) for i, t in enumerate(
        sorted(set(single) - {"$A"}))])


def nested(normalizer, levels):
    for _ in range(levels):
        normalizer = normalizers.Sequence([normalizer])
    return normalizer


def packages():
    """Yields a name, a layout, changes of its parts, and the files beside it."""
    rng = random.Random(5)
    for i in range(120):
        yield f"made up {i}", rng.choice(["gpt2", "neox", "llama2", "xlnet"]), {}, made_up_files(rng)
    for layout, name in [("gpt2", "GPT2Tokenizer"), ("gpt2", "CodeGenTokenizer"), ("gpt2", "PreTrainedTokenizerFast"),
                         ("neox", "GPTNeoXTokenizer"), ("qwen2", "Qwen2Tokenizer"), ("gpt2", "GPT2TokenizerFast")]:
        for prefix in ({}, {"add_prefix_space": True}, {"add_prefix_space": False}):
            yield f"{name} {prefix}", layout, {}, {"tokenizer_config.json": {"tokenizer_class": name, **prefix}}
    template = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}}
    for single in (["$A", "<a>"], ["<b>", "<a>", "$A"], ["<b>", "<a>", "$A", "<a>", "<a>"], ["<a>", "$A", "<b>"]):
        yield f"template {single}", "gpt2", {"post_processor": around(*single)}, template
    yield "a sequence", "gpt2", {"post_processor": processors.Sequence([
        processors.ByteLevel(), around("<b>", "$A", "<a>"), processors.ByteLevel()])}, template
    for levels in (4, 40):
        yield f"nested {levels}", "gpt2", {"normalizer": nested(normalizers.Replace("a", "zz"), levels)}, template


def compare_packages(folder, program):
    from transformers import AutoTokenizer
    own = [line for line in pages() if line.strip()]
    corpus, rng, differ, count = own + texts(3000, 1, own), random.Random(6), 0, 0
    lines = ["", " ", "the", *texts(100, 2, own)]
    lines = [rng.choice(NEW).join(rng.choice(lines).partition(" ")) + rng.choice(["", " ", *NEW]) for _ in range(150)] + lines
    trained = {}
    for name, layout, parts, files in packages():
        if layout not in trained:
            trained[layout] = train(next(each for each in layouts() if each["name"] == layout), 800, corpus).to_str()
        tokenizer = Tokenizer.from_str(trained[layout])
        for part, value in parts.items():
            setattr(tokenizer, part, value)
        package = folder / "package"
        package.mkdir(exist_ok=True)
        for old in package.iterdir():
            old.unlink()
        tokenizer.save(str(package / "tokenizer.json"))
        for file, content in files.items():
            (package / file).write_text(json.dumps(content))
        try:
            theirs = AutoTokenizer.from_pretrained(package)
        except Exception as error:  # then it is no package
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        count += 1
        said, rows = ours(folder, program, package, lines)
        wrong = [f"{said} {len(theirs)} {theirs.eos_token_id}"] * (
            said.get("vocab_size") != len(theirs) or theirs.eos_token_id not in (None, said["eod"]))
        for text, (ids, _) in zip(lines, rows, strict="error" not in said):
            expected, got = theirs(text).input_ids, said["before"] + ids + said["behind"]
            wrong += [f"{text!r}\n  {expected}\n  {got}"] * (got != expected)
        if wrong:
            differ += 1
            print(f"{name}: {layout} {files}: {len(wrong)} differ:", *wrong[:2], sep="\n ")
    print(f"{count} folders")
    if differ or count < 100:
        sys.exit(f"FAIL: {differ} of {count} folders differ")


def main():
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    {"fixtures": fixtures, "compare": compare, "packages": compare_packages}[sys.argv[1]](folder, *sys.argv[3:])


main()
