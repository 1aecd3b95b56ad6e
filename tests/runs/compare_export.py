#!/usr/bin/env python3
"""Compares what zero_to_fp32 exported with the masters of the checkpoint, bit by bit, as gather.py reads those.

    compare_export.py ckpt/global_step6 weights

Reads .bin and .safetensors with Python's standard library only. An index must name each tensor's file and the sum of
their sizes, in Hugging Face's names of files.
"""
import json
import math
import os
import re
import sys

import gather


def read_safetensors(path):
    with open(path, 'rb') as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))
        assert header.pop('__metadata__') == {'format': 'pt'}, path
        tensors, data = {}, file.read()
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        assert entry['dtype'] == 'F32' and end - begin == 4 * math.prod(entry['shape']), name
        tensors[name] = gather.Tensor(tuple(entry['shape']), data[begin:end])
    return tensors


def export(folder):
    """name -> tensor, of one file or of many."""
    files = sorted(file for file in os.listdir(folder) if file != '.anymesh.json')  # it records who wrote the export
    stem, kind = re.fullmatch(r'(pytorch_model|model)(?:-00001-of-\d{5})?\.(bin|safetensors)', files[0]).groups()
    read = gather.load if kind == 'bin' else read_safetensors
    if len(files) == 1:
        return read(f'{folder}/{files[0]}'), 1
    index = json.load(open(f'{folder}/{stem}.{kind}.index.json'))
    count = len(files) - 1
    assert files[:-1] == [f'{stem}-{i + 1:05}-of-{count:05}.{kind}' for i in range(count)], files
    tensors = {}
    for file in files[:-1]:
        for name, tensor in read(f'{folder}/{file}').items():
            assert index['weight_map'].pop(name) == file, name
            tensors[name] = tensor
    assert not index['weight_map'], index['weight_map']
    assert index['metadata']['total_size'] == sum(len(t.data) for t in tensors.values())
    return tensors, count


def main(checkpoint, folder):
    masters = gather.gather(checkpoint)['tensors']
    tensors, files = export(folder)
    wrong = sorted(masters.keys() ^ tensors.keys())
    wrong += [name for name in masters.keys() & tensors.keys() if masters[name]['fp32'] != tensors[name].data]
    for name in wrong:
        print(f'differs: {name}')
    print(f'{len(tensors)} tensors in {files} file(s), {len(wrong)} differences')
    return 1 if wrong or not tensors else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
