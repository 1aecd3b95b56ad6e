#!/usr/bin/env python3
"""Gathers the fuzzers' first inputs: seeds.py FOLDER writes FOLDER/TARGET/* from tests/fixtures.

Of files that are alike (a universal folder has hundreds) one is taken for each size, and none beyond 16 KiB, which is
more than a fuzzer can do with. The pickles in torch files are seeds of their own, tests/fuzz/crashes are too.
"""
import base64
import hashlib
import io
import json
import math
import pathlib
import struct
import sys
import tarfile
import zipfile

MAX_SIZE = 1 << 14  # as -max_len in run.sh


def safetensors(shapes):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for i, shape in enumerate(shapes):
        size = 4 * math.prod(shape)
        header[f"layer.{i}"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def main():
    here = pathlib.Path(__file__).resolve().parent
    fixtures, out = here.parent / "fixtures", pathlib.Path(sys.argv[1])
    seeds = {name: {} for name in ("pickle", "torch_file", "indexed_dataset", "safetensors", "deepspeed_json",
                                "tokenizer_json", "tiktoken")}

    def add(target, content, key=None):
        if len(content) <= MAX_SIZE:
            seeds[target].setdefault(key or content, content)

    for archive in sorted(fixtures.glob("*/*.tar.xz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.name.endswith(".pt"):
                    continue
                content = tar.extractfile(member).read()
                add("torch_file", content, len(content) // 256)
                with zipfile.ZipFile(io.BytesIO(content)) as file:
                    for name in file.namelist():
                        if name.endswith("/data.pkl"):
                            pickle = file.read(name)
                            add("pickle", pickle, len(pickle) // 16)
    for path in sorted(fixtures.rglob("*.idx")):
        add("indexed_dataset", path.read_bytes())
    for path in sorted((fixtures / "flags").glob("*.json")):
        add("deepspeed_json", path.read_bytes())
    for path in sorted((fixtures / "data/tokenizers").glob("*[a-z0-9].json")):
        if ".golden." not in path.name:
            add("tokenizer_json", path.read_bytes())
    ranks = [bytes([i]) for i in range(256)] + [b"th", b"the", b" a"]
    add("tiktoken", b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks)))
    add("tiktoken", json.dumps([{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": ""}
                                for rank, token in enumerate(ranks)]).encode())
    for shapes in ([], [[]], [[2, 3]], [[4], [0, 7], [1, 1, 2]]):
        add("safetensors", safetensors(shapes))
    for target, contents in seeds.items():
        for path in sorted((here / "crashes" / target).iterdir()):
            add(target, path.read_bytes())
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        for content in contents.values():
            (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)
        print(f"{target}: {len(contents)} seeds, {sum(map(len, contents.values()))} bytes")


main()
