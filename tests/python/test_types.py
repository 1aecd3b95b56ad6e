"""The annotations, and the stub of the extension module."""
import ast
import pathlib
import subprocess
import sys

import anymesh


def test_annotations_are_consistent():
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "-p", "anymesh"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_has_what_the_module_has():
    stub = ast.parse(pathlib.Path(anymesh.__file__).with_name("_core.pyi").read_text())

    def compare(module, body):
        nodes = {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert {name for name in nodes if name[0] != "_"} == {name for name in vars(module) if name[0] != "_"}
        for name, node in nodes.items():
            held = getattr(module, name)
            if isinstance(node, ast.ClassDef):
                compare(held, node.body)
            elif not isinstance(held, property) and node.name != "__init__":
                ((signature, *_),) = held.__nb_signature__
                taken = signature.rpartition(" -> ")[0].count("arg") + ("self" in signature)
                assert len(node.args.posonlyargs) == taken, signature

    compare(anymesh._core, stub.body)
