"""The command `anymesh`, ds_reshard and ds_to_universal, as pip installs them."""
import os
import shutil
import subprocess
import sys

import pytest

import anymesh

BIN = os.path.dirname(sys.executable)


def run(*words, status=0, cwd=None):
    done = subprocess.run([os.path.join(BIN, words[0]), *map(str, words[1:])], capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_reshard(z3, tmp_path):
    text = run("anymesh", "reshard", z3, tmp_path / "three", "--dp", "3")
    assert "every element covered exactly once" in text and f"load_checkpoint({str(tmp_path / 'three')!r})" in text
    assert anymesh.open(tmp_path / "three").mesh.dp == 3
    (tag,) = z3.glob("global_step*")
    run("anymesh", "reshard", tag, tmp_path / "one" / tag.name, "--dp=1", "--zero=2", "--dtype=fp32", "--num_workers", "2")
    assert anymesh.open(tmp_path / "one").mesh[2:] == (1, 1, 2)
    assert "would be" in run("anymesh", "reshard", z3, tmp_path / "dry", "--dp", "3", "--dry-run")
    assert not (tmp_path / "dry").exists()
    run("ds_reshard", "--input_folder", z3, "--output_folder", tmp_path / "ds" / "t", "--target", "dp=3")
    assert "give the new mesh" in run("anymesh", "reshard", z3, tmp_path / "x", status=2)
    assert "unknown flag --dq" in run("anymesh", "reshard", z3, tmp_path / "x", "--dp", "2", "--dq", status=2)
    assert "No such file" in run("anymesh", "reshard", tmp_path / "no", tmp_path / "x", "--dp", "2", status=2)


def test_the_other_commands(z3, tmp_path):
    shutil.copytree(z3, tmp_path / "c")
    run("anymesh", "to-universal", "c", cwd=tmp_path)
    run("ds_to_universal", "--input_folder", "c", "--output_folder", "u", cwd=tmp_path)
    assert "0 differences" in run("anymesh", "diff", "c/global_step4_universal", "u", cwd=tmp_path)
    run("anymesh", "to-fp32", "c", "w", "--dtype", "bf16", "--safe_serialization", cwd=tmp_path)
    assert "no problem" in run("anymesh", "verify", "c", cwd=tmp_path)
    assert "ZeRO 3" in run("anymesh", "inspect", "c", cwd=tmp_path)
    assert "1 differences" not in run("anymesh", "diff", "c", "w", status=1, cwd=tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in run("anymesh", "verify", "empty", status=2, cwd=tmp_path)


def test_convert(z3, unpacked, tmp_path):
    run("anymesh", "convert", z3, "dcp", "--to", "dcp", cwd=tmp_path)
    assert anymesh.open(tmp_path / "dcp").format == "dcp"
    assert "0 differences" in run("anymesh", "diff", z3, "dcp", cwd=tmp_path)
    run("anymesh", "convert", "dcp", "back/global_step4", "--to", "deepspeed", "--target", "dp=3,zero=1", cwd=tmp_path)
    assert "0 differences" in run("anymesh", "diff", z3, "back/global_step4", cwd=tmp_path)
    llama = unpacked("megatron/z1-bf16-tp2pp1dp1-llama") / "checkpoint"
    for form in ("dcp", "torch_dist"):  # FSDP2's and Megatron-Core's, of one model
        run("anymesh", "hf", "export", llama, form, "--to", form, cwd=tmp_path)
    run("anymesh", "convert", llama, "td", "--to", "torch_dist", cwd=tmp_path)
    assert "0 differences" in run("anymesh", "diff", "td", "torch_dist", cwd=tmp_path)
    run("anymesh", "convert", llama, "hf", "--to", "hf", cwd=tmp_path)
    for form in ("dcp", "torch_dist"):
        text = run("anymesh", "hf", "import", "hf", f"from_{form}", "--checkpoint", form, cwd=tmp_path)
        assert "--universal-checkpoint" in text and "--finetune" not in text, text
    assert "0 differences" in run("anymesh", "diff", "from_dcp", "from_torch_dist", cwd=tmp_path)
    assert "has no parameter" in run("anymesh", "hf", "import", "hf", "x", "--checkpoint", z3, status=1, cwd=tmp_path)
    assert "invalid choice" in run("anymesh", "convert", z3, "x", "--to", "fsdp", status=2, cwd=tmp_path)


def test_help_and_mistakes():
    assert "anymesh reshard CKPT OUT --dp 3" in run("anymesh", "--help")
    run("anymesh", status=2)
    assert "no command 'reshrad'" in run("anymesh", "reshrad", status=2)
    for command, word in [("reshard", "--dp"), ("to-universal", "CKPT"), ("to-fp32", "--dtype"), ("verify", "--workers"), ("hf", "export")]:
        assert word in run("anymesh", command, "--help")


def test_hugging_face(unpacked, tmp_path):
    text = run("anymesh", "hf", "export", unpacked("megatron/z1-bf16-tp2pp1dp1-llama") / "checkpoint", tmp_path / "hf")
    assert "LlamaForCausalLM" in (tmp_path / "hf" / "config.json").read_text(), text


@pytest.mark.parametrize("words", [["verify"], ["diff", "a"], ["to-fp32"], ["hf"]])
def test_missing_arguments_are_refused(words):
    assert run("anymesh", *words, status=2)
