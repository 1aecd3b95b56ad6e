#!/usr/bin/env python3
"""The Python package beside torch, safetensors and DeepSpeed's zero_to_fp32:

    python.py CHECKPOINT...          folders of tests/fixtures/deepspeed
"""
import pathlib
import sys

import safetensors.torch
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

import anymesh


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def every_dtype():
    values = torch.arange(-8, 8).reshape(4, 4) / 3
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
              torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {str(dtype): values.to(dtype) for dtype in dtypes} | {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 2)}
    pathlib.Path("weights").mkdir(exist_ok=True)
    safetensors.torch.save_file(tensors, "weights/model.safetensors")
    c = anymesh.open("weights")
    for name, tensor in tensors.items():
        assert same(torch.from_dlpack(c[name]), tensor) and same(c[name].torch(), tensor), name
    # In a file of torch's, where two names share a tensor.
    torch.save({**tensors, "complex": torch.ones(2, dtype=torch.complex64), "tied": tensors["scalar"]}, "weights.bin")
    c = anymesh.open("weights.bin")
    for name, tensor in tensors.items():
        assert same(torch.from_dlpack(c[name]), tensor), name
    assert c["complex"].torch().dtype == torch.complex64
    return f"{len(tensors)} tensors of {len(dtypes)} dtypes by DLPack"


def exports(folder):
    theirs = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    ours = anymesh.state_dict(folder)
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    for name, tensor in theirs.items():  # theirs leaves frozen ones in half precision
        assert same(ours[name], tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor), name
    places = {}
    for name, tensor in theirs.items():
        places.setdefault(tensor.data_ptr(), []).append(name)
    for names in places.values():
        assert len({ours[name].data_ptr() for name in names}) == 1 or theirs[names[0]].numel() == 0, names
    return f"{len(ours)} tensors are those of get_fp32_state_dict_from_zero_checkpoint, bit for bit"


print(every_dtype())
compared = 0
for folder in map(pathlib.Path, sys.argv[1:]):
    c = anymesh.open(folder / "checkpoint")
    if c.mesh.zero > 0 and c.mesh.tp == 1:  # their function knows no other
        print(f"{folder}: {exports(folder / 'checkpoint')}")
        compared += 1
assert compared > 4
