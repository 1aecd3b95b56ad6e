"""Opens, checks, compares and converts DeepSpeed's checkpoints, and cuts them anew for another number of GPUs.

>>> import anymesh
>>> anymesh.reshard("ckpt", "ckpt3", dp=3)     # the checkpoint that 3 ranks would have written
>>> c = anymesh.open("ckpt")                   # of any tp, pp, dp and ZeRO stage; universal, safetensors, .bin
>>> c.mesh, c.step, c.format, c.args
>>> w = c["model.layers.0.mlp.up_proj.weight"]
>>> w.shape, w.dtype, w.pieces                 # nothing is read yet
>>> w.numpy(), torch.from_dlpack(w)
>>> w.optimizer_state["exp_avg"].numpy()
>>> weights = anymesh.state_dict("ckpt")       # all weights, uncut, in memory

A path is what load_checkpoint takes (the folder with `latest`), a tag folder, a universal folder, or weights. No code that a
file names is ever executed. Errors are subclasses of anymesh.Error: UserError, DamagedFile, Unreadable, SystemFailure; a
missing path is Python's FileNotFoundError.
"""

from __future__ import annotations

from .checkpoint import Checkpoint, Mesh, Parameter, Path, Piece, Tensor, state_dict
from .errors import DamagedFile, Error, SystemFailure, Unreadable, UserError
from .operations import Report, diff, reshard, to_fp32, to_universal, verify

__all__ = [
    "Checkpoint",
    "DamagedFile",
    "Error",
    "Mesh",
    "Parameter",
    "Piece",
    "Report",
    "SystemFailure",
    "Tensor",
    "Unreadable",
    "UserError",
    "diff",
    "open",
    "reshard",
    "state_dict",
    "to_fp32",
    "to_universal",
    "verify",
]


def open(path: Path, tag: str | None = None, *, threads: int = 4) -> Checkpoint:
    """Opens any checkpoint: of DeepSpeed at any mesh and ZeRO stage, universal, safetensors or .bin.

    `tag` is a folder in `path`; by default the one that `latest` names. Reads metadata alone, with `threads` threads.

    Raises FileNotFoundError; DamagedFile if files are missing, damaged or of several saves; Unreadable; UserError.
    """
    return Checkpoint(path, tag, threads)
