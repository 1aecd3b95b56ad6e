#!/usr/bin/env python3
"""Real megatron-core and our data code on each other's files, and in the order of each other's samples:

    data.py FOLDER_OF_EXECUTABLES        in a scratch folder

Token files of every token type that one side writes are read by the other, token for token; samples of one data set and of
blends, of every part of --split, are those of megatron-core's GPTDataset and BlendedDataset. One line per comparison; exits 1
at the first difference.
"""
import logging
import pathlib
import subprocess
import sys
import types
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import get_blend_from_list

GPT_DATA = pathlib.Path(sys.argv[1]) / "gpt_data"
rng = numpy.random.RandomState(7)


def ours(*args, text=None):
    run = subprocess.run([GPT_DATA, *map(str, args)], input=text, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [[int(token) for token in line.split()] for line in run.stdout.splitlines()]


def write_theirs(prefix, dtype, documents):
    """A document is a list of sequences."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sequences in documents:
        builder.add_document([token for s in sequences for token in s], [len(s) for s in sequences])
    builder.finalize(f"{prefix}.idx")


def compare_token_files():
    for code in DType:
        dtype = DType.dtype_from_code(code.value)
        bounds = numpy.iinfo(dtype) if numpy.issubdtype(dtype, numpy.integer) else None
        low, high = (0, 1 << 24) if bounds is None else (bounds.min, min(bounds.max, 1 << 53))
        line = lambda least, most, n: [int(t) for t in rng.randint(least, most, n, dtype=numpy.int64)] + [least, most]
        # Documents of one sequence, of several, with an empty sequence among others, and without any.
        documents = [[line(low, high, 5)], [line(low, high, 3), line(low, high, 1)], [], [[], line(low, high, 2)], []]
        write_theirs("theirs", dtype, documents)
        assert ours("read", "theirs") == [s for document in documents for s in document], code

        low, high = max(low, -(1 << 31)), min(high, (1 << 31) - 1)
        documents = [line(low, high, 9), [], line(low, high, 1), []]
        ours("write", "ours", code.value, text="".join(" ".join(map(str, d)) + "\n" for d in documents))
        data = IndexedDataset("ours")
        assert data.index.dtype == dtype
        # An empty document has no sequence, but keeps its place in the document index.
        assert [data[i].tolist() for i in range(len(data))] == [d for d in documents if d], code
        assert data.document_indices.tolist() == [0, 1, 1, 2, 2], code
        print(f"{code.name}: both ways")


def their_samples(part, counts, split, seq_length, seed, data_path):
    config = GPTDatasetConfig(
        random_seed=seed, sequence_length=seq_length, blend=get_blend_from_list(data_path), split=split, path_to_cache=None,
        mid_level_dataset_surplus=0.005, tokenizer=types.SimpleNamespace(vocab_size=1000, eod=0, pad=-1, unique_identifiers={}), reset_position_ids=False,
        reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False)
    data = BlendedMegatronDatasetBuilder(GPTDataset, counts, lambda: True, config).build()[part]
    rows = (data[i] for i in range(counts[part]))
    return [row["tokens"].tolist() + row["labels"].tolist()[-1:] for row in rows]


def compare_samples():
    next_token = 0
    for name, documents in (("a", 40), ("b", 30), ("c", 110), *((f"many{i}", 10 + 10 * (i % 3)) for i in range(11))):
        lengths = rng.randint(1, 60, documents)
        write_theirs(name, numpy.int32, [[list(range(next_token, next_token := next_token + int(n)))] for n in lengths])
    blend = lambda *values: [str(v) for v in values]
    many = [v for i in range(11) for v in ((i * i % 17 + 1) / 10, f"many{i}")]
    cases = {
        "one data set": (["a"], [500, 20, 5]),
        "one data set with a weight": (blend(3, "a"), [500, 20, 5]),
        "two data sets": (blend(0.7, "a", 0.3, "b"), [500, 20, 5]),
        "two alike": (blend(1, "a", 1, "b"), [900, 41, 5]),
        "one twice": (blend(1, "a", 2, "c", 5, "a"), [700, 33, 7]),
        "a rare one": (blend(30, "a", 0.01, "b", 70, "c"), [1000, 12, 3]),
        "eleven data sets": (many, [2000, 50, 30]),
        "three data sets without weights": (["a", "b", "c"], [290, 25, 9]),
    }
    for name, (data_path, counts) in cases.items():
        for part, count in enumerate(counts):
            theirs = their_samples(part, counts, "80,10,10", 16, 1234, data_path)
            assert len(theirs) == count and ours("samples", part, count, "80,10,10", 16, 1234, *data_path) == theirs, (name, part)
        print(f"{name}: {counts} samples")


compare_token_files()
compare_samples()
