#!/usr/bin/env python3
"""rows.py UNIVERSAL HUGGING_FACE: where the rows of Q, K and V of the first layer are in both, by comparing their bytes.

Prints a line for each block of a head, "K1 80 64": K of head 1 begins at row 80 of GPT-2's matrix, and at row 64 of the checkpoint's.
"""
import json
import struct
import sys
import zipfile


def checkpoint_rows(folder):
    """The rows of query_key_value, [3h, h]."""
    with zipfile.ZipFile(f"{folder}/zero/2.self_attention.query_key_value.weight/fp32.pt") as file:
        data = file.read(next(name for name in file.namelist() if name.endswith("/data/0")))
    hidden = int((len(data) // 4 / 3) ** 0.5)
    return [data[i:i + 4 * hidden] for i in range(0, len(data), 4 * hidden)]


def hugging_face_rows(folder):
    """The rows of c_attn, which GPT-2 stores transposed, [h, 3h]."""
    with open(f"{folder}/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        tensor = header["transformer.h.0.attn.c_attn.weight"]
        begin, end = tensor["data_offsets"]
        file.seek(begin, 1)
        data = file.read(end - begin)
    hidden, rows = tensor["shape"]
    return [b"".join(data[4 * (i * rows + row):4 * (i * rows + row) + 4] for i in range(hidden)) for row in range(rows)]


def main(universal, hugging_face):
    with open(f"{hugging_face}/config.json") as file:
        heads = json.load(file)["n_head"]
    here, theirs = checkpoint_rows(universal), hugging_face_rows(hugging_face)
    size = len(here) // 3 // heads
    for block in range(3 * heads):
        first = block * size
        at = here.index(theirs[first])
        if here[at:at + size] != theirs[first:first + size]:
            sys.exit(f"rows {first} to {first + size - 1} do not stand together")
        print(f"{'QKV'[block // heads]}{block % heads} {first} {at}")


if __name__ == "__main__":
    main(*sys.argv[1:])
