"""The command `anymesh`: the checkpoint tools under short names.

anymesh reshard CKPT OUT --dp 3      the checkpoint that 3 ranks would have written
anymesh convert CKPT OUT --to dcp    FSDP2's format; also torch_dist, deepspeed, universal, hf
anymesh to-universal CKPT [OUT]      DeepSpeed's universal format, for --universal-checkpoint
anymesh to-fp32 CKPT OUT             the uncut weights, as torch and Hugging Face load them
anymesh verify CKPT                  is everything there, undamaged, and of one save?
anymesh diff A B                     the same weights, moments and steps, bit by bit?
anymesh inspect CKPT                 what it is, how each parameter is cut, what its files hold
anymesh hf export|import FROM TO     from and to Hugging Face's GPT-2, Llama, Qwen and more

CKPT is what load_checkpoint takes (the folder with `latest`), or the tag folder itself.
anymesh COMMAND --help shows a command's flags.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from . import _core
from .errors import Error
from .operations import tag_folder, universal_folder

_HELP = {"-h", "--help"}


def main() -> int:
    words = sys.argv[1:]
    if not words or words[0] in _HELP:
        print((__doc__ or "").strip())
        return 0 if words else 2
    command, rest = words[0], words[1:]
    if command in ("verify", "diff", "inspect"):
        return _run("ckpt", ["--help"] if _HELP & set(rest) else words)
    if command == "to-fp32":
        return _run("zero_to_fp32", rest)
    if command == "hf":
        return _run("hf_convert", rest)
    if command in _COMMANDS:
        try:
            return _COMMANDS[command](rest)
        except (Error, OSError) as error:
            print(f"anymesh {command}: {error}", file=sys.stderr)
            return 2
    print(f"anymesh: no command {command!r}; anymesh --help lists them", file=sys.stderr)
    return 2


def ds_reshard() -> int:
    """The tool of that name, with its own flags."""
    return _run("ds_reshard", sys.argv[1:])


def ds_to_universal() -> int:
    """The tool of that name, with its own flags, which are those of DeepSpeed's script."""
    return _run("ds_to_universal", sys.argv[1:])


def _run(tool: str, words: list[str]) -> int:
    # Ctrl-C ends the process, as it ends the tool's own program: the next run goes on where it was.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_tool(tool, words)


def _parser(command: str, tool: str, description: str) -> argparse.ArgumentParser:
    epilog = f"All other flags are those of {tool} ({tool} --help)."
    parser = argparse.ArgumentParser(f"anymesh {command}", description=description, epilog=epilog)
    parser.add_argument("ckpt", metavar="CKPT", help="the folder with `latest`, or a tag folder")
    return parser


def _reshard(words: list[str]) -> int:
    parser = _parser("reshard", "ds_reshard", "Cuts a checkpoint anew for another mesh. What no flag names stays as it is.")
    parser.add_argument("out", metavar="OUT", help="the folder that load_checkpoint will be given, or the tag folder in it")
    for name, meaning in _MESH.items():
        parser.add_argument(f"--{name}", metavar="N", help=meaning)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="precision of the weights; masters keep their bits")
    flags, others = parser.parse_known_args(words)
    target = ",".join(f"{name}={getattr(flags, name)}" for name in (*_MESH, "dtype") if getattr(flags, name) is not None)
    if not target:
        parser.error("give the new mesh: --dp 3, say")
    output = tag_folder(flags.ckpt, flags.out)
    status = _run("ds_reshard", ["--input_folder", flags.ckpt, "--output_folder", output, "--target", target, *others])
    if status == 0 and "--dry-run" not in others:
        print(f"load_checkpoint({os.path.dirname(output) or '.'!r}) takes it")
    return status


def _convert(words: list[str]) -> int:
    parser = _parser("convert", "ckpt convert or hf_convert export", "Writes a checkpoint in another framework's format.")
    parser.add_argument("out", metavar="OUT", help="the folder to make; of deepspeed, the tag folder")
    parser.add_argument("--to", required=True, choices=("dcp", "torch_dist", "deepspeed", "universal", "hf"),
                        help="dcp: torch.distributed.checkpoint, under the same names; torch_dist: Megatron-Core's, and hf: Hugging "
                        "Face's weights, of a checkpoint of pretrain_gpt")
    flags, others = parser.parse_known_args(words)
    if flags.to in ("dcp", "deepspeed", "universal"):
        return _run("ckpt", ["convert", flags.ckpt, flags.out, "--to", flags.to, *others])
    form = [] if flags.to == "hf" else ["--to", flags.to]
    return _run("hf_convert", ["export", flags.ckpt, flags.out, *form, *others])


def _to_universal(words: list[str]) -> int:
    parser = _parser("to-universal", "ds_to_universal", "Converts a checkpoint to DeepSpeed's universal format.")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the folder to make; by default TAG_universal beside the tag")
    flags, others = parser.parse_known_args(words)
    output = universal_folder(flags.ckpt, flags.out)
    return _run("ds_to_universal", ["--input_folder", flags.ckpt, "--output_folder", output, *others])


_MESH = {
    "dp": "data-parallel ranks",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "ep": "ranks that share the experts",
    "zero": "ZeRO stage, 0 to 3",
}
_COMMANDS = {"reshard": _reshard, "convert": _convert, "to-universal": _to_universal}

if __name__ == "__main__":
    sys.exit(main())
