"""Checkpoints, and the tensors in their files."""

from __future__ import annotations

import argparse
import html
import os
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Union

from . import _core
from .errors import UserError
from .progress import Bar

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor as TorchTensor  # type: ignore[import-not-found, unused-ignore]

Path = Union[str, "os.PathLike[str]"]

_THREADS = min(16, 4 * (os.cpu_count() or 1))
_NOT_NUMPYS = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}


class Mesh(NamedTuple):
    """The mesh of the run that saved a checkpoint."""

    tp: int  #: tensor-parallel ranks
    pp: int  #: pipeline stages
    dp: int  #: data-parallel ranks
    ep: int  #: ranks that share the experts, out of dp
    zero: int  #: ZeRO stage, 0 to 3


class Piece(NamedTuple):
    """Where consecutive elements of a parameter lie."""

    pp: int  #: the pipeline stage that has them
    tp: int  #: the tensor-parallel rank that has them
    dp: int  #: the data-parallel rank that has them
    begin: int  #: the first element, counted in the tp rank's row-major shard
    numel: int
    file: str
    record: str  #: in the file, e.g. "archive/data/3"; empty for safetensors
    offset: int  #: in the file, in bytes
    nbytes: int


class Tensor:
    """A tensor in a checkpoint's files, which is read when its elements are asked for.

    >>> t.numpy()                 # a numpy.ndarray
    >>> torch.from_dlpack(t)      # a torch.Tensor; so can any library that knows DLPack

    A read checks the checksum of each record that it completes. ``anymesh.verify`` checks everything.
    """

    def __init__(self, tensor: _core.Tensor) -> None:
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self._tensor.shape

    @property
    def dtype(self) -> str:
        """torch's name, e.g. "float32", "bfloat16", "float8_e4m3fn"."""
        return self._tensor.dtype

    @property
    def nbytes(self) -> int:
        return self._tensor.nbytes

    def to(self, dtype: str) -> Tensor:
        """Returns the tensor rounded to "fp32", "bf16" or "fp16", to nearest even, as it is read.

        Raises UserError for another dtype, Unreadable for a tensor of complex numbers.
        """
        return Tensor(self._tensor.to(dtype))

    def numpy(self) -> NDArray[Any]:
        """Returns a new array of this shape. Bfloat16 and float8 have the dtypes of ml_dtypes.

        Raises DamagedFile for a wrong checksum, ImportError where ml_dtypes is needed and missing.
        """
        return _read_numpy([self._tensor])[0]

    def torch(self) -> TorchTensor:
        """The same as torch.from_dlpack(self)."""
        import torch

        return torch.from_dlpack(self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **arguments: Any) -> Any:
        return _core.read([self._tensor], _THREADS, None)[0].__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype} {list(self.shape)}>"


class Parameter(Tensor):
    """A parameter's weights, uncut whichever mesh saved them: fp32 masters where the checkpoint has them."""

    def __init__(self, name: str, parameter: _core.Parameter) -> None:
        self.name = name
        self._parameter = parameter
        self._states = parameter.states
        super().__init__(self._states["fp32"])

    @property
    def step(self) -> float | int | None:
        """The optimizer's step of this parameter, or None."""
        return self._parameter.step

    @property
    def pieces(self) -> list[Piece]:
        """Where the weights lie: a piece for each run of bytes in a file."""
        return self.pieces_of("fp32")

    def pieces_of(self, state: str) -> list[Piece]:
        """The same for a state of the optimizer, e.g. "exp_avg"."""
        return [Piece(*piece) for piece in self._parameter.pieces(state)]

    @property
    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's states by name, each a Tensor, and "step", a number. Empty for an untrained parameter."""
        states: dict[str, Any] = {name: Tensor(tensor) for name, tensor in self._states.items() if name != "fp32"}
        if self.step is not None:
            states["step"] = self.step
        return states

    def __repr__(self) -> str:
        return f"<Parameter {self.name}: {self.dtype} {list(self.shape)}>"


class Checkpoint(Mapping[str, Parameter]):
    """Any checkpoint, as a mapping from names to parameters. ``anymesh.open`` makes it.

    Opening reads only metadata. Files stay open as long as the checkpoint or a tensor of it lives. Threads may share it, and
    forked processes inherit it.
    """

    def __init__(self, path: Path, tag: str | None = None, threads: int = 4) -> None:
        self._checkpoint = _core.Checkpoint(expect_there(path), tag or "", threads)
        self._names = self._checkpoint.names
        self._known = frozenset(self._names)

    @property
    def path(self) -> str:
        """The tag folder, universal folder or file."""
        return self._checkpoint.path

    @property
    def format(self) -> str:
        """ "deepspeed", "universal", "safetensors" or "torch"."""
        return self._checkpoint.format

    @property
    def description(self) -> str:
        """E.g. "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"."""
        return self._checkpoint.description

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that saved it, or that a universal folder was made from. None for weights."""
        mesh = self._checkpoint.mesh
        return Mesh(*mesh) if mesh else None

    @property
    def step(self) -> int | None:
        """The training step of the save, or None for weights."""
        step = self._checkpoint.step
        return None if step is None else int(step)

    @property
    def args(self) -> argparse.Namespace:
        """Megatron's arguments; empty if the checkpoint has none."""
        args = self.metadata.get("args")
        return args if isinstance(args, argparse.Namespace) else argparse.Namespace()

    @property
    def metadata(self) -> dict[str, Any]:
        """All else that the first rank's model-states file holds: ds_config, lr_scheduler, client state, ...

        Objects of classes come as argparse.Namespace, with their attributes alone: no code of a file is executed.
        """
        return self._checkpoint.metadata(Tensor)

    @property
    def notes(self) -> list[str]:
        """What to know about this checkpoint, a line each."""
        refused = self._checkpoint.states_refused
        return list(self._checkpoint.notes) + ([f"the optimizer's states are not understood: {refused}"] if refused else [])

    def optimizer_state(self, name: str) -> dict[str, Any]:
        """The optimizer's states of a parameter by name, each a Tensor, and "step", a number."""
        return self[name].optimizer_state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._known:
            raise KeyError(name)
        return Parameter(name, self._checkpoint.parameter(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}: {self.description}, {len(self)} parameters>"

    def _repr_html_(self) -> str:
        def row(cells: list[str], kind: str = "td") -> str:
            return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"

        rows = [row(["parameter", "dtype", "shape", "optimizer's states", "pieces"], "th")]
        for name in self._names[:_MOST_ROWS]:
            parameter = self[name]
            states = ", ".join(state for state in parameter.optimizer_state if state != "step")
            rows.append(row([name, parameter.dtype, str(list(parameter.shape)), states, str(len(parameter.pieces))]))
        if len(self) > _MOST_ROWS:
            rows.append(row([f"... and {len(self) - _MOST_ROWS} more"]))
        step = "" if self.step is None else f", step {self.step}"
        head = html.escape(f"{self.path}: {self.description}{step}, {len(self)} parameters")
        return f"<table><caption>{head}</caption>{''.join(rows)}</table>"


_MOST_ROWS = 100


def expect_there(path: Path) -> str:
    """Returns the path as a text. Raises FileNotFoundError if there is nothing."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise UserError("a path cannot hold a null character")
    os.stat(text)
    return text


def state_dict(
    path: Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    *,
    dtype: str | None = None,
    framework: str | None = None,
    progress: Any = None,
) -> dict[str, Any]:
    """Returns the uncut weights of any checkpoint, in memory, by name.

    It takes the place of DeepSpeed's get_fp32_state_dict_from_zero_checkpoint, at any tp, pp and ZeRO stage. Half precision
    becomes float32; with `dtype` ("bf16", "fp16", "fp32") every floating-point tensor is rounded to it. Tied weights share
    their memory. Every byte that is read is checked.

    `framework` is "torch" or "numpy"; by default torch, if it is installed. `progress` is a class like tqdm's.

    Raises FileNotFoundError, UserError, DamagedFile, Unreadable.
    """
    if framework not in (None, "torch", "numpy"):
        raise UserError(f'framework: expected "torch" or "numpy", found {framework!r}')
    if framework is None:
        try:
            import torch  # noqa: F401

            framework = "torch"
        except ImportError:
            framework = "numpy"
    checkpoint = _core.Checkpoint(expect_there(path), tag or "", _THREADS)
    names, tensors, places = checkpoint.exported(exclude_frozen_parameters, dtype or "")
    with Bar(progress) as bar:
        if framework == "torch":
            import torch

            arrays: list[Any] = [torch.from_dlpack(array) for array in _core.read(tensors, _THREADS, bar)]
        else:
            arrays = _read_numpy(tensors, bar)
    checkpoint.finish_checks(_THREADS)
    return {name: arrays[place] for name, place in zip(names, places)}


def _read_numpy(tensors: list[_core.Tensor], progress: Any = None) -> list[NDArray[Any]]:
    import numpy

    raw, arrays = [], []
    for tensor in tensors:
        if tensor.dtype in _NOT_NUMPYS:
            try:
                import ml_dtypes
            except ImportError as missing:
                raise ImportError(
                    f'numpy has no {tensor.dtype}: pip install ml_dtypes, or take .to("fp32"), or torch.from_dlpack()'
                ) from missing
            dtype = numpy.dtype(getattr(ml_dtypes, tensor.dtype))
            raw.append(numpy.empty(tensor.shape, f"uint{8 * dtype.itemsize}"))
            arrays.append(raw[-1].view(dtype))
        else:
            raw.append(numpy.empty(tensor.shape, tensor.dtype))
            arrays.append(raw[-1])
    _core.read_into(tensors, raw, _THREADS, progress)
    return arrays
