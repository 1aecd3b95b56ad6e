"""Damaged and hostile files give errors of ours, and no more."""
import os
import pickle
import random
import shutil
import zipfile

import pytest

import anymesh


def use(path):
    """Reads everything. Returns the error, or None."""
    try:
        c = anymesh.open(path)
        for name in c:
            c[name].pieces, c[name].optimizer_state
        c.metadata, c._repr_html_()
        anymesh.state_dict(path, framework="numpy")
        return None
    except (anymesh.Error, FileNotFoundError) as error:
        assert str(error)
        return error


def test_no_code_of_a_file_is_executed(z3, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"weight": Evil()}, protocol=2))
        archive.writestr("x/version", "3")
    assert use(tmp_path) and not (tmp_path / "executed").exists()


@pytest.mark.parametrize("seed", range(4))
def test_changed_files(z3, tmp_path, seed):
    draw = random.Random(seed)
    shutil.copytree(z3, tmp_path / "c")
    files = sorted((tmp_path / "c").rglob("*.pt"))
    silent = 0
    for _ in range(60):
        file = draw.choice(files)
        original = file.read_bytes()
        changed = bytearray(original)
        kind = draw.randrange(4)
        if kind == 0:  # cut off
            changed = changed[: draw.randrange(len(changed))]
        elif kind == 1:  # a flipped bit
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        elif kind == 2:  # noise
            at = draw.randrange(len(changed))
            changed[at : at + 64] = draw.randbytes(64)
        else:  # a number that is too large, in the metadata
            at = draw.randrange(min(4000, len(changed)))
            changed[at : at + 4] = b"\xff\xff\xff\x7f"
        file.write_bytes(changed)
        silent += use(tmp_path / "c") is None and not anymesh.verify(tmp_path / "c")
        file.write_bytes(original)
    assert use(tmp_path / "c") is None
    # verify() looks at more than the weights: moments, the other ranks' metadata.
    assert silent < 40


def test_what_is_no_checkpoint(tmp_path):
    for name, content in {"a.bin": b"", "b.pt": b"PK\3\4" + bytes(100), "c.safetensors": b"\xff" * 8, "d.safetensors": bytes(8)}.items():
        (tmp_path / name).write_bytes(content)
        assert isinstance(use(tmp_path / name), anymesh.Error)
        assert str(tmp_path / name) in str(use(tmp_path / name))
    assert use(tmp_path) and isinstance(use(tmp_path / "nothing"), FileNotFoundError)
    with pytest.raises(anymesh.UserError, match="null"):
        anymesh.open("a\0b")
