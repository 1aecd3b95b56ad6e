"""A second reader of torch's files, by numpy alone, to compare with."""
import io
import pickle
import zipfile

import numpy

_DTYPES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "BFloat16Storage": "<u2"}


class _Any:
    """Stands for a class whose objects a test does not read."""

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        self.state = state


def load(path):
    """Returns the object of a torch file; tensors come as arrays, bfloat16 as its bits."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]

        class Unpickler(pickle.Unpickler):
            def find_class(self, module, name):
                if name == "OrderedDict":
                    return dict
                if name == "_rebuild_tensor_v2":
                    return self.rebuild
                return name if name.endswith("Storage") else type(name, (_Any,), {})

            def persistent_load(self, saved):
                _, kind, key, _, _ = saved
                return numpy.frombuffer(archive.read(f"{root}/data/{key}"), _DTYPES.get(kind, "u1"))

            @staticmethod
            def rebuild(storage, offset, size, stride, *_):
                steps = [step * storage.itemsize for step in stride]
                return numpy.lib.stride_tricks.as_strided(storage[offset:], size, steps)

        return Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl"))).load()


def write_safetensors(path, tensors):
    """Writes tensors, each as (safetensors' dtype, array of its bytes)."""
    import json

    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        shape = list(array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(array.tobytes())
