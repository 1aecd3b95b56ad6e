#!/usr/bin/env python3
"""Loads and saves of other programs, for benchmarks/load.sh, on tensors of the names, shapes and values that a universal
checkpoint in CHECKPOINTS has:

    torchrun --nproc_per_node 2 peer_checkpoint.py dcp-save CHECKPOINTS FOLDER    torch.distributed.checkpoint's save, async_save
    torchrun --nproc_per_node 4 peer_checkpoint.py dcp-load CHECKPOINTS FOLDER    ... and load of what dcp-save has left in FOLDER
    torchrun --nproc_per_node 2 peer_checkpoint.py deepspeed CHECKPOINTS FOLDER   DeepSpeed's universal load, then its save

Rank 0 prints lines like those of checkpoint_cost.cpp, with the most of any rank.
"""
import logging
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

logging.disable(logging.WARNING)
STATES = ("fp32", "exp_avg", "exp_avg_sq")


def bytes_read():
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])  # rchar


def report(work, **values):
    most = torch.tensor(list(values.values()), dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(work, *(f"{name}={value:.6g}" for name, value in zip(values, most.tolist())), flush=True)


def clock():
    """Starts at once on all ranks."""
    dist.barrier()
    start = time.perf_counter()
    return lambda: time.perf_counter() - start


def bytes_in(folder):
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def universal_tensors(checkpoints, states):
    zero = checkpoints / (checkpoints / "latest_universal").read_text() / "zero"
    return {(parameter.name, state): torch.load(parameter / f"{state}.pt", mmap=True, weights_only=False)["param"]
            for parameter in sorted(zero.iterdir()) if parameter.is_dir() for state in states}


# ---- torch.distributed.checkpoint

def sharded(checkpoints):
    """Every tensor cut over its first dimension, as FSDP cuts it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))

    def cut(whole):
        parts = whole.chunk(size)
        mine = parts[rank].clone() if rank < len(parts) else whole[:0].clone()
        return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())

    return {f"{name}.{state}": cut(whole) for (name, state), whole in universal_tensors(checkpoints, STATES).items()}


@torch.no_grad()
def dcp_save(checkpoints, folder):
    import torch.distributed.checkpoint as dcp
    tensors = sharded(checkpoints)
    elapsed = clock()
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder))  # sync_files is True by default
    report("save", s=elapsed(), bytes=bytes_in(folder))

    # The writer does the staging. torch 2.11's DefaultStager fails on DTensors, and a cached copy needs pinned memory, thus a
    # GPU.
    beside = folder.with_name("async")
    elapsed = clock()
    saving = dcp.async_save(tensors, storage_writer=dcp.FileSystemWriter(beside))
    returned = elapsed()  # the copy is complete
    saving.result()
    done = elapsed()
    report("async", s=done, returned=returned, free=returned, bytes=bytes_in(beside))


@torch.no_grad()
def dcp_load(checkpoints, folder):
    import torch.distributed.checkpoint as dcp
    tensors = sharded(checkpoints)
    expected = {name: tensor.to_local().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.to_local().zero_()
    elapsed, read = clock(), bytes_read()
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder))
    report("load", s=elapsed(), read=bytes_read() - read, held=sum(t.nbytes for t in expected.values()))
    assert all(torch.equal(tensors[name].to_local(), local) for name, local in expected.items()), "loaded other values"


# ---- DeepSpeed

def module_of(tensors):
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor)))
    return root


def deepspeed_engine(checkpoints, folder):
    import deepspeed
    weights = {name: weight for (name, _), weight in universal_tensors(checkpoints, STATES[:1]).items()}
    model = module_of(weights)
    parameters = [model.get_parameter(name) for name in weights]
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}])
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "checkpoint": {"load_universal": True}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    elapsed, read = clock(), bytes_read()
    engine.load_checkpoint(str(checkpoints))
    report("load", s=elapsed(), read=bytes_read() - read, held=sum(p.numel() for p in parameters) * 12 / dist.get_world_size())
    assert all(torch.equal(p.detach(), weights[name]) for name, p in model.named_parameters()), "loaded other values"

    elapsed = clock()
    engine.save_checkpoint(str(folder))
    saved = elapsed()
    os.sync()
    report("save", s=saved, synced=elapsed(), bytes=bytes_in(folder))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = {"dcp-save": dcp_save, "dcp-load": dcp_load, "deepspeed": deepspeed_engine}[sys.argv[1]]
    work(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    dist.destroy_process_group()
