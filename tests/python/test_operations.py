"""Cuts, converts, exports, verifies and compares."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy
import pytest
import torch_files

import anymesh


def entries(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


class Bar:
    """Like tqdm's class."""

    shown = []

    def __init__(self, total, unit, unit_scale):
        assert unit == "B" and unit_scale
        self.total, self.done = total, 0
        Bar.shown.append(self)

    def update(self, n):
        self.done += n

    def close(self):
        self.closed = True


def test_reshard_makes_what_load_checkpoint_takes(z3, tmp_path):
    tag = anymesh.reshard(z3, tmp_path / "ckpt3", dp=3, zero=1)
    assert tag == str(tmp_path / "ckpt3" / "global_step4")
    assert (tmp_path / "ckpt3" / "latest").read_text() == "global_step4"
    c = anymesh.open(tmp_path / "ckpt3")
    assert (c.mesh.dp, c.mesh.zero) == (3, 1)
    assert anymesh.diff(z3, tmp_path / "ckpt3") and anymesh.verify(tmp_path / "ckpt3")
    # The tag folder itself, of the tag folder itself.
    assert anymesh.reshard(tag, tmp_path / "x" / "global_step4", dp=1) == str(tmp_path / "x" / "global_step4")
    assert anymesh.diff(tmp_path / "x", z3)


def test_reshard_refuses(z3, tmp_path):
    for target in ({}, {"dp": 0}, {"zero": 4}, {"dtype": "int8"}, {"tp": 2}):
        with pytest.raises((anymesh.Error, TypeError)) as refused:
            anymesh.reshard(z3, tmp_path / "out", **target)
        assert "--" not in str(refused.value), "names a flag that Python has not"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        anymesh.reshard(tmp_path / "nowhere", tmp_path / "out", dp=3)
    assert entries(tmp_path) == []


def test_to_universal_and_back(z3, tmp_path):
    shutil.copytree(z3, tmp_path / "ckpt")
    folder = anymesh.to_universal(tmp_path / "ckpt")
    assert folder == str(tmp_path / "ckpt" / "global_step4_universal")
    assert anymesh.open(folder).format == "universal" and anymesh.diff(folder, z3)
    anymesh.reshard(folder, tmp_path / "again", dp=2)
    assert anymesh.diff(tmp_path / "again", z3)


def test_to_fp32_writes_weights(z2, tmp_path):
    anymesh.to_fp32(z2 / "checkpoint", tmp_path / "w")
    assert (tmp_path / "w" / "model.safetensors").exists()
    assert anymesh.diff(tmp_path / "w", z2 / "fp32")
    anymesh.to_fp32(z2 / "checkpoint", tmp_path / "half", dtype="bf16", safe_serialization=False)
    c = anymesh.open(tmp_path / "half")
    assert c.format == "torch" and {c[name].dtype for name in c} == {"bfloat16"}
    with pytest.raises(anymesh.UserError):
        anymesh.to_fp32(z2 / "checkpoint", tmp_path / "w", dtype="int4")


def test_verify_and_diff_report(z3, tmp_path):
    shutil.copytree(z3, tmp_path / "c")
    piece = next(piece for piece in anymesh.open(tmp_path / "c")["h.0.attn.bias"].pieces if piece.dp == 1)
    file = pathlib.Path(piece.file)
    content = bytearray(file.read_bytes())
    content[piece.offset] ^= 1
    file.write_bytes(content)
    report = anymesh.verify(tmp_path / "c")
    assert not report and report.code == 1 and "CRC" in str(report) and file.name in str(report)
    with pytest.raises(anymesh.DamagedFile, match="offset"):
        report.raise_if_not_ok()
    with pytest.raises(anymesh.DamagedFile, match=file.name):
        anymesh.state_dict(tmp_path / "c")
    c = anymesh.open(tmp_path / "c")
    with pytest.raises(anymesh.DamagedFile, match="offset"):  # the read that completes the record
        for name in c:
            c[name].numpy()
            for state in c.optimizer_state(name).values():
                getattr(state, "numpy", int)()
    other = anymesh.reshard(z3, tmp_path / "other", dp=1, dtype="fp32")
    assert anymesh.diff(z3, other) and "no" not in repr(anymesh.diff(z3, other)).split(":")[0].lower()


@pytest.fixture
def big(tmp_path):
    """600 MB of weights, which take a while."""
    folder = tmp_path / "big"
    folder.mkdir()
    arrays = {f"w{i}": ("F32", numpy.ones((3, 1 << 20, 16), "f4")) for i in range(3)}
    torch_files.write_safetensors(folder / "model.safetensors", arrays)
    return folder


def test_progress_is_like_tqdms_and_may_stop_the_work(big, tmp_path):
    Bar.shown.clear()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])  # slow enough for a bar on any machine
    try:
        anymesh.to_fp32(big, tmp_path / "out", dtype="fp16", progress=Bar)
    finally:
        os.sched_setaffinity(0, cores)
    (bar,) = Bar.shown
    assert bar.closed and bar.done == bar.total == sum(f.stat().st_size for f in (tmp_path / "out").glob("*.safetensors"))

    program = f"""import anymesh, os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
class Stopping:
    def __init__(self, **arguments): pass
    def update(self, n): raise LookupError
    def close(self): print("closed")
anymesh.to_fp32({str(big)!r}, {str(tmp_path / "new" / "out2")!r}, dtype="fp16", progress=Stopping)"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stderr.endswith("LookupError\n") and run.stdout == "closed\n"
    assert not (tmp_path / "new").exists()


def test_ctrl_c_stops_and_removes_what_was_begun(big, tmp_path):
    program = f"import anymesh\nprint('go', flush=True)\nanymesh.to_fp32({str(big)!r}, {str(tmp_path / 'o')!r}, dtype='bf16')"
    before = entries(tmp_path)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "go\n"
        while not (tmp_path / "o" / "weights.tmp").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
    assert entries(tmp_path) == before


def test_ctrl_c_stops_a_read(big):
    program = f"""import anymesh, os, signal, threading
c = anymesh.open({str(big)!r})
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        c["w1"].numpy()
except KeyboardInterrupt:
    print("stopped")"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "stopped\n", run.stderr


def test_a_full_disk_is_an_os_error(z3, tmp_path):
    program = f"""import resource, anymesh
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
anymesh.reshard({str(z3)!r}, {str(tmp_path / 'o')!r}, dp=1)"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "anymesh.errors.SystemFailure" in run.stderr and "too large" in run.stderr.lower()
    assert issubclass(anymesh.SystemFailure, OSError) and issubclass(anymesh.UserError, ValueError)
    assert issubclass(anymesh.DamagedFile, ValueError) and issubclass(anymesh.Unreadable, OSError)
    assert os.path.exists(z3)
