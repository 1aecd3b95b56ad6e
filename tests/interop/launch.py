#!/usr/bin/env python3
"""Runs a script on ranks, as deepspeed and torchrun do:

    launch.py RANKS SCRIPT ARGUMENTS...

The ranks are forks. So torch, DeepSpeed and transformers are imported once, and no operation of DeepSpeed is compiled (see
ranks.py).
"""
import pathlib
import runpy
import sys
import tempfile

import transformers.trainer

from ranks import on_ranks


def main():
    size, *sys.argv = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        on_ranks(int(size), pathlib.Path(scratch), runpy.run_path, sys.argv[0], None, "__main__")


if __name__ == "__main__":
    main()
