"""Opens checkpoints and reads tensors."""
import argparse
import ctypes
import gc
import multiprocessing
import os
import pydoc
import sys
import threading

import ml_dtypes
import numpy
import pytest
import torch_files

import anymesh


@pytest.mark.parametrize(
    "name, mesh, step",
    [
        ("deepspeed/z0-fp32-dp2", (1, 1, 2, 1, 0), 4),
        ("deepspeed/z1-bf16-dp2", (1, 1, 2, 1, 1), 4),
        ("deepspeed/z2-bf16-dp3", (1, 1, 3, 1, 2), 4),
        ("deepspeed/z3-bf16-dp2", (1, 1, 2, 1, 3), 4),
        ("megatron/z1-bf16-tp2pp2dp1", (2, 2, 1, 1, 1), 10),
    ],
)
def test_tells_what_a_checkpoint_is(unpacked, name, mesh, step):
    c = anymesh.open(unpacked(name) / "checkpoint")
    assert tuple(c.mesh) == mesh and c.mesh.zero == mesh[-1]
    assert (c.step, c.format) == (step, "deepspeed")
    assert anymesh.open(c.path).mesh == c.mesh  # the tag itself
    assert len(c) == len(list(c)) > 0 and "nothing" not in c
    with pytest.raises(KeyError):
        c["nothing"]


def test_args_are_megatrons(unpacked):
    c = anymesh.open(unpacked("megatron/z1-bf16-tp2pp2dp1") / "checkpoint")
    assert isinstance(c.args, argparse.Namespace) and c.args.tensor_model_parallel_size == 2
    assert c.metadata["dp_world_size"] == 1 and "module" not in c.metadata


def test_weights_and_states_equal_deepspeeds_exports(z2):
    c = anymesh.open(z2 / "checkpoint")
    exported = torch_files.load(z2 / "fp32" / "pytorch_model.bin")
    weights = anymesh.state_dict(z2 / "checkpoint", framework="numpy")
    assert list(weights) and set(weights) == set(exported)
    for name, array in exported.items():
        assert weights[name].dtype == array.dtype and weights[name].tobytes() == array.tobytes()
        assert c[name].numpy().tobytes() == array.tobytes()
    universal = z2 / "universal" / "global_step4_universal"
    compared = 0
    for name in c:
        for state in ("exp_avg", "exp_avg_sq"):
            file = universal / "zero" / name / f"{state}.pt"
            if file.exists():
                assert c.optimizer_state(name)[state].numpy().tobytes() == torch_files.load(file)["param"].tobytes()
                compared += 1
        assert c[name].step == c.optimizer_state(name).get("step")
    assert compared > 20
    u = anymesh.open(z2 / "universal")
    assert (u.format, u.mesh.dp, u.step) == ("universal", 3, 4)
    assert u[name].numpy().tobytes() == c[name].numpy().tobytes()


def test_fsdp2s_checkpoints_open_too(unpacked):
    folder = unpacked("dcp/dcp") / "uneven"
    c, truth = anymesh.open(folder / "checkpoint"), torch_files.load(folder / "truth.pt")
    assert (c.format, c.mesh, len(c)) == ("dcp", None, len(truth["model"]))
    for name, array in truth["model"].items():
        assert c[name].numpy().tobytes() == array.tobytes()
        for state in c.optimizer_state(name):
            expected = truth["optim"][f"state.{name}.{state}"]
            assert state == "step" or c.optimizer_state(name)[state].numpy().tobytes() == expected.tobytes()


def test_pieces_say_where_the_bytes_lie(z3):
    c = anymesh.open(z3)
    for name in c:
        elements = bytearray()
        for piece in c[name].pieces:
            with open(piece.file, "rb") as file:
                file.seek(piece.offset)
                elements += file.read(piece.nbytes)
            assert piece.nbytes == 4 * piece.numel
        assert bytes(elements) == c[name].numpy().tobytes()
    assert {piece.dp for name in c for piece in c[name].pieces} == {0, 1}
    assert c[name].pieces_of("nothing") == []


def test_tied_weights_share_their_memory(unpacked):
    weights = anymesh.state_dict(unpacked("deepspeed/z3-bf16-dp2") / "checkpoint", framework="numpy")
    c = anymesh.open(unpacked("deepspeed/z3-bf16-dp2") / "checkpoint")
    (second, first), = c.metadata["shared_params"].items()
    assert weights[first] is weights[second]


def of_all_dtypes(path):
    values = numpy.arange(-6, 6, dtype="f4").reshape(3, 4) / 3
    types = {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1", "BOOL": "?",
             "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    arrays = {name: (name, values.astype(dtype)) for name, dtype in types.items()}
    arrays["scalar"], arrays["empty"] = ("F32", numpy.float32(3).reshape(())), ("F32", numpy.zeros((0, 2), "f4"))
    torch_files.write_safetensors(path, arrays)
    return {name: array for name, (_, array) in arrays.items()}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64))]


def test_every_dtype_comes_as_it_is_stored(tmp_path, monkeypatch):
    arrays = of_all_dtypes(tmp_path / "model.safetensors")
    c = anymesh.open(tmp_path)
    assert (c.format, c.mesh, c.step, vars(c.args)) == ("safetensors", None, None, {})
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    codes = {"F": 2, "I": 0, "U": 1, "BOOL": 6, "BF16": 4, "F8_E4M3": 10, "F8_E5M2": 12}  # DLPack's
    for name, array in arrays.items():
        p = c[name]
        assert p.dtype == str(array.dtype) and p.shape == array.shape and p.nbytes == array.nbytes
        read = p.numpy()
        assert read.dtype == array.dtype and read.tobytes() == array.tobytes() and read.flags.writeable
        assert numpy.asarray(p, dtype="f8").shape == array.shape
        capsule = p.__dlpack__()
        tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
        code = codes[name if name in codes else name[0] if name[0] in "FIU" else "F"]
        assert (tensor.code, tensor.bits, tensor.lanes) == (code, 8 * array.itemsize, 1)
        assert ctypes.string_at(tensor.data, array.nbytes) == array.tobytes() and p.__dlpack_device__() == (1, 0)
    assert c["BF16"].to("fp32").numpy().tobytes() == arrays["BF16"].astype("f4").tobytes()
    assert c["F32"].to("bf16").numpy().tobytes() == arrays["F32"].astype(ml_dtypes.bfloat16).tobytes()
    with pytest.raises(anymesh.UserError, match="int3"):
        c["F32"].to("int3")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        c["BF16"].numpy()


def read_bytes():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def test_reads_only_what_is_asked_for(tmp_path):
    big = {name: ("F32", numpy.full((1024, 2048), i, "f4")) for i, name in enumerate("abc")}
    torch_files.write_safetensors(tmp_path / "model.safetensors", big)
    c = anymesh.open(tmp_path)
    before = read_bytes()
    assert c["b"].numpy().sum() == 1024 * 2048
    assert read_bytes() - before <= 1.02 * c["b"].nbytes


def test_notebooks_show_a_table(z3):
    page = anymesh.open(z3)._repr_html_()
    assert page.count("<tr>") == len(anymesh.open(z3)) + 1 and "exp_avg" in page and "ZeRO 3" in page
    assert "Checkpoint" in repr(anymesh.open(z3))


def test_threads_share_a_checkpoint(z3):
    c, wrong = anymesh.open(z3), []
    expected = {name: c[name].numpy().tobytes() for name in c}

    def read():
        for _ in range(20):
            wrong.extend(name for name in c if c[name].numpy().tobytes() != expected[name])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_processes_inherit_a_checkpoint(z3):
    c = anymesh.open(z3)
    expected = {name: c[name].numpy().tobytes() for name in c}
    fork = multiprocessing.get_context("fork")

    def child(queue):
        queue.put(all(c[name].numpy().tobytes() == expected[name] for name in c) and len(anymesh.state_dict(z3)) == len(c))

    queue = fork.Queue()
    children = [fork.Process(target=child, args=(queue,)) for _ in range(4)]
    for process in children:
        process.start()
    assert [queue.get(timeout=60) for _ in children] == [True] * 4
    for process in children:
        process.join()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_thousand_opens_leak_nothing(z3):
    def use():
        c = anymesh.open(z3)
        name = next(iter(c))
        return c[name].numpy(), c.metadata, c._repr_html_(), anymesh.state_dict(z3, framework="numpy")

    for _ in range(50):
        use()
    gc.collect()
    files, memory = len(os.listdir("/proc/self/fd")), resident()
    for _ in range(1000):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    assert resident() - memory < 4 << 20  # a leak of 4 KB each would be seen


def test_help_reads_well():
    page = pydoc.plain(pydoc.render_doc(anymesh))
    for name in anymesh.__all__:
        assert name in page and getattr(anymesh, name).__doc__
    for name in ("open", "reshard", "verify", "diff", "state_dict", "to_fp32", "to_universal"):
        text = getattr(anymesh, name).__doc__
        assert text[0].isupper() and text.splitlines()[0].endswith((".", ":"))
