import pathlib
import tarfile

import pytest

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """unpacked("deepspeed/z3-bf16-dp2") is the folder with that fixture's files, to be read only."""
    folder, known = tmp_path_factory.mktemp("fixtures"), {}

    def unpack(name):
        if name not in known:
            known[name] = folder / name
            known[name].mkdir(parents=True)
            with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
                archive.extractall(known[name])
            (inner,) = known[name].iterdir()
            known[name] = inner
        return known[name]

    return unpack


@pytest.fixture
def z3(unpacked):
    """A checkpoint of DeepSpeed, ZeRO 3 on two ranks."""
    return unpacked("deepspeed/z3-bf16-dp2") / "checkpoint"


@pytest.fixture
def z2(unpacked):
    """ZeRO 2 on three ranks, with DeepSpeed's own exports beside it."""
    return unpacked("deepspeed/z2-bf16-dp3")
