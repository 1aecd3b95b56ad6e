#!/usr/bin/env python3
"""Checks that includes point only downwards, so that every room can be read without the rooms above.

A file includes its own room and those before it in ROOMS. framework/format is entered by its doors alone. LIGHT files, and all that
they include, need neither LibTorch nor MPI.
"""
import os
import pathlib
import re
import sys

ROOMS = """
framework/torch.h framework/util/ framework/format/io/ framework/format/torch_file/ framework/format/layout/ framework/format/folder/
framework/format/write/ framework/format/sharded/ framework/format/dialects/ framework/format/checkpoint/ framework/format/whole/ framework/format/reshard/ framework/format/ framework/optim/loss_scaler framework/optim/lr_scheduler framework/optim/options.h framework/comm/topology.h framework/config/ framework/data/ framework/comm/
framework/kernels/ framework/cuda/ framework/storage.h framework/param_spec framework/optim/ framework/tensor_parallel/ framework/expert_parallel/
framework/pipeline/ framework/zero/ framework/profile/ framework/run.h framework/checkpoint/ framework/engine framework/run/ models/ tools/
""".split()
LIGHT = re.compile(r"framework/((util|format|config|data)/|optim/(loss_scaler|lr_scheduler|options)|zero/(memory_form|stage)\.h)|models/gpt/gpt_(comm_form|config|memory_form|parameters)|tools/(?!generate/)")
DOOR = re.compile(r"framework/format/\w+\.h$")


def room(path):
    return next((i for i, name in enumerate(ROOMS) if path.startswith(name)), None)


def heavy(path, includes, seen):
    """Returns a header of LibTorch or MPI that `path` includes, itself or through others, or None."""
    if path in seen:
        return None
    seen.add(path)
    for name in includes.get(path, []):
        found = name if re.match("<(torch|ATen|c10|caffe2|mpi)\\b", name) else heavy(name.strip('"'), includes, seen)
        if found:
            return found
    return None


def violations(includes):
    for path, names in sorted(includes.items()):
        if room(path) is None:
            yield f"{path}: is in no room of this test"
            continue
        if LIGHT.match(path) and (found := heavy(path, includes, set())):
            yield f"{path}: includes {found}, but is built without LibTorch and MPI"
        for name in (n.strip('"') for n in names if n.startswith('"')):
            inside = path.startswith("framework/format/") or not name.startswith("framework/format/")
            if room(name) is None or room(name) > room(path):
                yield f"{path}: includes {name}, which lies above it"
            elif not inside and not DOOR.match(name):
                yield f"{path}: includes {name}, expected one of the doors framework/format/*.h"


def read(paths):
    return {p: re.findall(r'^\s*#\s*include\s*(<[^>]*>|"[^"]*")', open(p).read(), re.M) for p in paths}


# Tests this test: each planted file is one violation, but for the last three.
planted = {
    "framework/comm/a.h": ['"framework/zero/zero_optimizer.h"'],
    "framework/zero/b.cpp": ['"models/gpt/gpt_model.h"'],
    "framework/format/io/c.h": ["<torch/types.h>"],
    "framework/data/d.cpp": ['"framework/util/e.h"'],
    "framework/util/e.h": ["<mpi.h>"],
    "tools/f.cpp": ['"framework/format/io/file_io.h"'],
    "framework/format/io/g.h": ['"framework/format/layout/names.h"'],
    "framework/new_room/h.h": [],
    "framework/zero/i.h": ['"framework/comm/communicator.h"', "<vector>"],
    "framework/comm/j.cpp": ["<mpi.h>"],
    "tools/k.cpp": ['"framework/format/io.h"'],
}
found = {v.split(":")[0] for v in violations(planted)}
expected = {p for p in planted if not re.search(r"/[ijk]\.", p)}
if found != expected:
    sys.exit(f"FAIL: this test does not see planted violations as it should: {sorted(found ^ expected)}")

os.chdir(pathlib.Path(__file__).parents[2])
includes = read(str(p) for top in ("framework", "models", "tools") for p in pathlib.Path(top).rglob("*.*")
                if p.suffix in (".h", ".cpp", ".cu"))
problems = list(violations(includes))
print("\n".join(problems) or f"ok: {sum(map(len, includes.values()))} includes point downwards")
sys.exit(bool(problems))
