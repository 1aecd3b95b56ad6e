"""A checkpoint of 4 ranks, cut for 3 and again for 4, against itself: every key, type and bit of every file.

One key may differ, which no load reads. BF16_Optimizer counts all padding of a group to the last rank, also where the padding exceeds
that rank's partition, and DeepSpeed's own converter then fails. ds_reshard counts each rank's own, as DeepSpeedZeroOptimizer does.
"""
import enum
import re

import torch

def entries(value, where=""):
    """Yields (path of keys, leaf) of all that a file holds."""
    if isinstance(value, dict):
        yield where, (type(value), list(value))
        for key, item in value.items():
            yield from entries(item, f"{where}/{key}")
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        yield where, (type(value), len(value))
        for index, item in enumerate(value):
            yield from entries(item, f"{where}/{index}")
    elif hasattr(value, "__dict__") and not isinstance(value, (enum.Enum, torch.Tensor, type)):
        yield where, type(value)
        yield from entries(vars(value), where)
    else:
        yield where, value


def without_padding(flat, shapes, rank, ranks):
    """The elements of parameters in a rank's flat partition at ZeRO 3. DeepSpeed leaves its padding as it finds the memory."""
    kept, start = [], 0
    for shape in shapes:
        share = -(-shape.numel() // ranks)
        here = max(0, min(share, shape.numel() - rank * share))
        kept.append(flat[start:start + here])
        start += share
    assert start == flat.numel(), f"{start} elements in the shapes, {flat.numel()} in the partition"
    return torch.cat(kept)


def load(tag, ranks):
    """{file: {path: leaf}}, padding aside."""
    raw = {f.name: torch.load(f, weights_only=False) for f in sorted(tag.glob("*.pt"))}
    files = {name: dict(entries(contents)) for name, contents in raw.items()}
    for name, found in files.items():
        rank = re.search(r"pp_rank_(\d+)", name)
        model = rank and raw.get(f"zero_pp_rank_{rank[1]}_mp_rank_00_model_states.pt")
        if not model:
            continue
        shapes = [list(group.values()) for group in model["param_shapes"]]
        for path, leaf in found.items():
            group = re.search(r"/(?:fp32_flat_groups/(\d+)|state/(\d+)/\w+)$", path)
            if group and torch.is_tensor(leaf) and leaf.dim() > 0:
                found[path] = without_padding(leaf, shapes[int(group[1] or group[2])], int(rank[1]), ranks)
            elif "/frozen_param_fragments/" in path:
                found[path] = without_padding(leaf, [model["frozen_param_shapes"][path.split("/")[2]]], int(rank[1]), ranks)
    return files


def same(a, b):
    if torch.is_tensor(a) and torch.is_tensor(b):
        bits = [t.flatten().view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    return type(a) is type(b) and a == b


def counts_padding(file, path):
    """Whether this is the one key that may differ."""
    return file.startswith("bf16_") and re.search(r"/group_paddings/\d+$", path)


def there_and_back(original, returned):
    """What differs, and how many tensors were compared."""
    a, b = load(original, 4), load(returned, 4)
    wrong = [] if a.keys() == b.keys() else [f"files {sorted(a.keys() ^ b.keys())}"]
    tensors = 0
    for file in sorted(a.keys() & b.keys()):
        for path in sorted(a[file].keys() | b[file].keys()):
            before, after = a[file].get(path), b[file].get(path)
            tensors += torch.is_tensor(before)
            if not same(before, after) and not counts_padding(file, path):
                wrong.append(f"{file}{path}: {str(before)[:60]} became {str(after)[:60]}")
    return wrong, tensors
