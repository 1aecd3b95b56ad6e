"""Ranks as forks of this process, which has imported torch and DeepSpeed once for all of them."""
import gc
import os
import socket
import sys
import time
import traceback
import types

import torch
import torch.distributed
from torch.optim.adamw import adamw

import deepspeed
import deepspeed.ops.adam.fused_adam
import deepspeed.runtime.zero.muon.muon_optimizer  # which the first engine imports


def multi_tensor_adam(chunk_size, overflow, tensors, lr, beta1, beta2, eps, step, decoupled, corrected, weight_decay):
    """DeepSpeed's FusedAdam calls this in place of its compiled kernel: a step of AdamW, with the number of this step."""
    if not (decoupled and corrected):
        raise NotImplementedError("Adam without decoupled weight decay or bias correction")
    gradients, parameters, averages, squares = tensors
    adamw(parameters, gradients, averages, squares, [], [torch.tensor(step - 1.0) for _ in parameters], amsgrad=False, lr=lr,
          beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, maximize=False)


# Torch computes and gloo reduces. DeepSpeed's own code for both would have to be compiled first, which takes minutes.
deepspeed.ops.adam.fused_adam.FusedAdamBuilder.load = lambda self: types.SimpleNamespace(multi_tensor_adam=multi_tensor_adam)
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def rank_main(rank, size, port, log, work, arguments):
    """Ends the process. Its output goes to `log`, and to ours if it fails."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                      LOCAL_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        work(*arguments)
        torch.distributed.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without the destructors of what the parent made


def on_ranks(size, scratch, work, *arguments):
    """Calls `work(*arguments)` on `size` ranks. When one fails, ends the others and raises its last lines."""
    port, ranks = free_port(), {}
    gc.freeze()  # ZeRO 3 collects garbage: not among what was imported
    for rank in range(size):
        log = scratch / f"rank{rank}.log"
        child = os.fork()
        if child == 0:
            rank_main(rank, size, port, log, work, arguments)
        ranks[child] = log
    failed = None
    while ranks:
        child, status = os.wait()
        log = ranks.pop(child)
        if status and failed is None:
            failed = log
            time.sleep(1)
            for other in ranks:
                os.kill(other, 9)
    if failed is not None:
        raise RuntimeError(f"{size} ranks: {failed.name}:\n{failed.read_text(errors='replace')[-3000:]}")


def run_jobs(jobs, first, results):
    for index, (work, *arguments) in enumerate(jobs[first:], first):
        result = work(*arguments)
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            torch.save(result, results / f"{index}.pt")


def jobs_on_ranks(size, scratch, jobs):
    """The results of jobs (work, *arguments), one after the other on the same ranks. One that fails has its error as its result,
    and new ranks do the rest."""
    results, folder = [], scratch / f"results-on-{size}"
    folder.mkdir(parents=True)
    while len(results) < len(jobs):
        first, error = len(results), None
        try:
            on_ranks(size, scratch, run_jobs, jobs, first, folder)
        except RuntimeError as failed:
            error = failed
        while (done := folder / f"{len(results)}.pt").exists():
            results.append(torch.load(done, weights_only=False))
        if error is not None and len(results) < len(jobs):
            results.append(error)
    return results
