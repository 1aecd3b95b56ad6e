"""The tools as functions. Each takes what load_checkpoint takes (the folder with `latest`) or the tag folder itself."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any, Iterator

from . import _core
from .checkpoint import Path, expect_there
from .errors import DamagedFile, Error, UserError
from .progress import Bar

_THREADS = 4

# The tools' messages name their flags; here they are arguments.
_ARGUMENTS = {
    "--target: ": "",
    "--input_folder": "src",
    "--output_folder": "dst",
    "--assume_module_order": "assume_module_order=True",
    "--exclude_frozen_parameters": "exclude_frozen_parameters",
    "--overwrite": "overwrite=True",
    " --target ": " ",
}


@contextlib.contextmanager
def _arguments_named() -> Iterator[None]:
    try:
        yield
    except Error as error:
        text = str(error)
        for flag, argument in _ARGUMENTS.items():
            text = text.replace(flag, argument)
        raise type(error)(text) from None


class Report:
    """The findings of verify() or diff(). True if there are none."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code  #: 0 all is well; 1 broken, or different; 3 a part is of a kind that is not understood
        self.lines = text.splitlines()  #: a line for each finding; the last sums them up

    def __bool__(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"<Report {'ok' if self else 'NOT ok'}: {self.lines[-1] if self.lines else ''}>"

    def raise_if_not_ok(self) -> None:
        """Raises DamagedFile with all findings, if there are any."""
        if not self:
            raise DamagedFile(str(self))


def verify(path: Path, *, threads: int = _THREADS, progress: Any = None) -> Report:
    """Checks that everything is there, undamaged and of one save: every byte against its checksum, every element once.

    >>> if not anymesh.verify("ckpt"): ...

    Raises FileNotFoundError, and DamagedFile for a folder that is no checkpoint at all.
    """
    with Bar(progress) as bar:
        return Report(*_core.verify(expect_there(path), threads, bar))


def diff(a: Path, b: Path, *, threads: int = _THREADS, progress: Any = None) -> Report:
    """Compares weights, optimizer's states and steps of two checkpoints of any mesh and format, bit by bit."""
    with Bar(progress) as bar:
        return Report(*_core.diff(expect_there(a), expect_there(b), threads, bar))


def reshard(
    src: Path,
    dst: Path,
    *,
    dp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ep: int | None = None,
    zero: int | None = None,
    dtype: str | None = None,
    assume_module_order: bool = False,
    threads: int = 0,
    progress: Any = None,
) -> str:
    """Cuts a DeepSpeed checkpoint anew for another mesh, ZeRO stage or precision, and returns the new tag folder.

    >>> anymesh.reshard("ckpt", "ckpt3", dp=3)    # then, on 3 ranks: engine.load_checkpoint("ckpt3")

    What is not named stays. `dst` is the folder that load_checkpoint will be given: the tag folder and `latest` are made in
    it, and what else belongs to the checkpoint. It may also be the tag folder itself, if it ends in the tag's name.

    The output appears when it is whole. Ctrl-C or an exception in `progress` removes what there is of it. What no file tells
    (the random numbers of new ranks, say) is a warning.

    Raises FileNotFoundError; UserError for a target that DeepSpeed cannot train; DamagedFile; Unreadable; SystemFailure.
    """
    given = {"dp": dp, "tp": tp, "pp": pp, "ep": ep, "zero": zero, "dtype": dtype}
    target = ",".join(f"{key}={value}" for key, value in given.items() if value is not None)
    if not target:
        raise UserError("give the new mesh: dp=3, say")
    output = tag_folder(src, dst)
    with Bar(progress) as bar, _arguments_named():
        _warn(_core.reshard(expect_there(src), output, target, threads, assume_module_order, bar))
    return output


def tag_folder(src: Path, dst: Path) -> str:
    """Returns where reshard() makes the tag folder."""
    tag, output = os.path.basename(_core.resolve_tag(expect_there(src))), os.fsdecode(dst)
    return output if os.path.basename(os.path.normpath(output)) == tag else os.path.join(output, tag)


def universal_folder(src: Path, dst: Path | None) -> str:
    """Returns the folder that to_universal() makes."""
    return os.fsdecode(dst) if dst is not None else _core.resolve_tag(expect_there(src)) + "_universal"


def to_universal(src: Path, dst: Path | None = None, *, threads: int = 0, progress: Any = None) -> str:
    """Converts a checkpoint to DeepSpeed's universal format, and returns the folder: by default TAG_universal beside the tag.

    It ends as reshard() does, and raises the same.
    """
    output = universal_folder(src, dst)
    with Bar(progress) as bar, _arguments_named():
        _warn(_core.to_universal(expect_there(src), output, threads, bar))
    return output


def to_fp32(
    src: Path,
    dst: Path,
    *,
    dtype: str | None = None,
    safe_serialization: bool = True,
    max_shard_size: str = "5GB",
    exclude_frozen_parameters: bool = False,
    overwrite: bool = False,
    progress: Any = None,
) -> str:
    """Writes the uncut weights of any checkpoint as model.safetensors, or as pytorch_model.bin, and returns the folder.

    `dtype` "bf16" or "fp16" rounds them. `overwrite` replaces weights there that no export of ours left. It ends as reshard()
    does, and raises the same.
    """
    with Bar(progress) as bar, _arguments_named():
        _warn(
            _core.to_fp32(
                expect_there(src),
                os.fsdecode(dst),
                dtype or "",
                safe_serialization,
                max_shard_size,
                exclude_frozen_parameters,
                overwrite,
                bar,
            )
        )
    return os.fsdecode(dst)


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, stacklevel=3)
