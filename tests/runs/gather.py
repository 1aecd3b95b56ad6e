#!/usr/bin/env python3
"""Gathers two ordinary checkpoints into whole tensors and compares them bit by bit: fp32, the optimizer's states, step.

    gather.py ckpt/global_step6 again/global_step6
    gather.py ckpt/global_step6 weights             the masters with what zero_to_fp32 exported, as .bin or .safetensors

A second opinion beside `ckpt diff`: it shares no code with it and reads nothing of universal_checkpoint_info but the
size of the vocabulary. How ZeRO lays out partitions is DeepSpeed's, how tensor parallelism cuts parameters is
Megatron's, each as written down here. Needs Python's standard library only; unpickles no class that it does not know.
"""
import collections
import glob
import json
import math
import os
import pickle
import re
import sys
import zipfile

Tensor = collections.namedtuple('Tensor', 'shape data')  # contiguous, `data` its bytes
ITEM_SIZE = {'torch FloatStorage': 4, 'torch HalfStorage': 2, 'torch BFloat16Storage': 2, 'torch LongStorage': 8}


class Attributes:  # stands for any class whose state is a dictionary
    pass


KNOWN = {
    'collections OrderedDict': collections.OrderedDict,
    'torch Size': tuple,
    'torch float16': 'float16',
    'argparse Namespace': Attributes,
    'deepspeed.utils.tensor_fragment fragment_address': Attributes,
    'deepspeed.runtime.fp16.loss_scaler LossScaler': Attributes,
    'deepspeed.runtime.fp16.loss_scaler DynamicLossScaler': Attributes,
    'deepspeed.runtime.zero.config ZeroStageEnum': int,
} | {storage: storage for storage in ITEM_SIZE}


class TorchFile(pickle.Unpickler):
    """What torch.save wrote: a zip of data.pkl and one record per storage."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path)
        pickled, = (name for name in self.zip.namelist() if name.endswith('/data.pkl'))
        self.root = pickled.removesuffix('data.pkl')
        super().__init__(self.zip.open(pickled))

    def find_class(self, module, name):
        if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):
            return self.tensor
        return KNOWN[f'{module} {name}']

    def persistent_load(self, pid):
        kind, storage, key, _, numel = pid
        data = self.zip.read(self.root + 'data/' + key)
        assert kind == 'storage' and len(data) == numel * ITEM_SIZE[storage], pid
        return ITEM_SIZE[storage], data

    @staticmethod
    def tensor(storage, offset, shape, strides, *_):
        size, data = storage
        contiguous = tuple(math.prod(shape[dim + 1:]) for dim in range(len(shape)))
        assert strides == contiguous or 0 in shape, (shape, strides)
        return Tensor(shape, data[offset * size:(offset + math.prod(shape)) * size])


def load(path):
    return TorchFile(path).load()


def cut(flat, start, numel):
    assert 4 * (start + numel) <= len(flat.data), 'a fragment reaches beyond its partition'
    return flat.data[4 * start:4 * (start + numel)]


class Rank:
    """One model-parallel rank of a checkpoint: the slices of its parameters, dp ranks joined."""

    def __init__(self, folder, mp_rank):
        self.slices = {}  # name -> {'shape', 'fp32', 'states': its names, ...: their bytes, 'step'}
        files = sorted(glob.glob(f'{folder}/*zero_pp_rank_*_mp_rank_{mp_rank:02d}_optim_states.pt'),
                       key=lambda path: int(re.search(r'zero_pp_rank_(\d+)_', path)[1]))
        self.optimizers = [load(file)['optimizer_state_dict'] for file in files]
        self.stage = int(self.optimizers[0]['zero_stage']) if files else 0
        prefix = 'zero_pp_rank_0_' if self.stage == 3 else ''
        self.model = load(f'{folder}/{prefix}mp_rank_{mp_rank:02d}_model_states.pt')
        self.folder, self.tp_rank = folder, mp_rank % self.model['checkpoint_parallel_dimensions']['tp_degree']
        assert len(files) == (self.model['dp_world_size'] if self.stage else 0), 'optimizer files are missing'
        self.groups = self.model['param_shapes']
        for shapes in self.groups:
            for name, shape in shapes.items():
                self.slices[name] = {'shape': shape, 'fp32': b'', 'states': ()}
        (self.zero0, self.zero12, self.zero12, self.zero3)[self.stage]()
        for name, slice_ in self.slices.items():
            for state in ('fp32', *slice_['states']):
                assert len(slice_[state]) == 4 * math.prod(slice_['shape']), f'{name} {state} is not covered once'

    def add(self, name, state, start, numel, flat):
        slice_ = self.slices[name]
        slice_['fp32'] += cut(flat, start, numel)
        states = tuple(sorted(set(state) - {'step'}))
        assert slice_['states'] in ((), states), f'{name}: dp ranks differ in states'
        slice_['states'] = states
        for other in states:
            slice_[other] = slice_.get(other, b'') + cut(state[other], start, numel)
        assert slice_.setdefault('step', state['step']) == state['step'], f'{name}: dp ranks differ in step'

    def zero12(self):  # reads fragments, in the order of dp ranks
        for optimizer in self.optimizers:
            for group, fragments in enumerate(optimizer['param_slice_mappings']):
                for name, fragment in fragments.items():
                    self.add(name, optimizer['base_optimizer_state']['state'][group], fragment.start, fragment.numel,
                             optimizer['single_partition_of_fp32_groups'][group])

    def zero3(self):  # reads each parameter in equal parts, the last ones padded
        ranks = len(self.optimizers)
        for rank, optimizer in enumerate(self.optimizers):
            for group, shapes in enumerate(self.groups):
                start = 0
                for name, shape in shapes.items():
                    numel = math.prod(shape)
                    part = -(-numel // ranks)
                    self.add(name, optimizer['optimizer_state_dict']['state'][group], start,
                             max(0, min(part, numel - rank * part)), optimizer['fp32_flat_groups'][group])
                    start += part

    def zero0(self):
        optimizer = self.model['optimizer']
        if 'fp32_groups_flat' in optimizer:  # 16-bit weights: flat groups
            for group, shapes in enumerate(self.groups):
                start = 0
                for name, shape in shapes.items():
                    self.add(name, optimizer['optimizer_state_dict']['state'][group], start, math.prod(shape),
                             optimizer['fp32_groups_flat'][group])
                    start += math.prod(shape)
            return
        names = [name for shapes in self.groups for name in shapes]  # torch's own: one state for each parameter
        for index, name in enumerate(names):
            state = optimizer['state'][index]
            assert all(state[other].shape == self.slices[name]['shape'] for other in set(state) - {'step'}), name
            self.add(name, state, 0, math.prod(self.slices[name]['shape']), self.weight(name))

    def weight(self, name):  # in the model-states file, or in a pipeline's layer files
        if self.model['module'] is not None:
            return self.model['module'][name]
        layer, rest = (1, name.split('.', 2)[2]) if name.startswith('tied_modules.') else name.split('.', 1)
        return load(f'{self.folder}/layer_{int(layer):02d}-model_{self.tp_rank:02d}-model_states.pt')[rest]


def joined(name, slices, shape, gated):
    """Megatron's cuts: rows of column-parallel weights and vocabulary tables, columns of row-parallel weights."""
    if re.search(r'\.(self_attention\.dense|mlp\.dense_4h_to_h)\.weight$', name):
        row = 4 * shape[1]
        return b''.join(part[i * row:(i + 1) * row] for i in range(shape[0]) for part in slices)
    if gated and '.mlp.dense_h_to_4h.' in name:  # all gates, then all up projections
        half = len(slices[0]) // 2
        return b''.join(part[:half] for part in slices) + b''.join(part[half:] for part in slices)
    if re.search(r'\.(query_key_value|dense_h_to_4h)\.|\.(word_embeddings|lm_head)\.weight$', name):
        return b''.join(slices)
    assert all(part == slices[0] for part in slices), f'{name}: replicas of tp ranks differ'
    return slices[0]


def gather(folder):
    """What it is; name -> the bytes of 'fp32' and of the states of the whole parameter, and 'step'."""
    count = len({re.search(r'mp_rank_(\d+)', file)[1] for file in os.listdir(folder) if 'mp_rank' in file})
    ranks = [Rank(folder, mp_rank) for mp_rank in range(count)]
    tp = ranks[0].model['checkpoint_parallel_dimensions']['tp_degree']
    args = ranks[0].model['args']
    gated, vocabulary = args.swiglu or getattr(args, 'geglu', False), ranks[0].model['universal_checkpoint_info']['original_vocab_size']
    whole = {}
    for first in range(0, count, tp):
        stage = ranks[first:first + tp]
        for name in stage[0].slices:
            slices = [rank.slices[name] for rank in stage]
            shape = slices[0]['shape']
            tensors = {state: joined(name, [slice_[state] for slice_ in slices], shape, gated)
                       for state in ('fp32', *slices[0]['states'])}
            if re.search(r'\.(word_embeddings|lm_head)\.weight$', name):
                tensors = {state: data[:4 * vocabulary * shape[1]] for state, data in tensors.items()}
            tensors['step'] = slices[0]['step'].data
            assert all(slice_['step'].data == tensors['step'] for slice_ in slices), f'{name}: step'
            assert whole.setdefault(name, tensors) == tensors, f'{name}: tied copies differ'
    return f'ZeRO {ranks[0].stage}', whole


def read_safetensors(path):
    with open(path, 'rb') as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))
        assert header.pop('__metadata__') == {'format': 'pt'}, path
        tensors, data = {}, file.read()
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        assert entry['dtype'] == 'F32' and end - begin == 4 * math.prod(entry['shape']), name
        tensors[name] = Tensor(tuple(entry['shape']), data[begin:end])
    return tensors


def export(folder):
    """The same for exported weights. An index must name each tensor's file and the sum of their sizes."""
    files = sorted(file for file in os.listdir(folder) if file != '.anymesh.json')  # it records who wrote the export
    stem, kind = re.fullmatch(r'(pytorch_model|model)(?:-00001-of-\d{5})?\.(bin|safetensors)', files[0]).groups()
    parts = files[:-1] or files  # an index follows several files
    found = {part: (load if kind == 'bin' else read_safetensors)(f'{folder}/{part}') for part in parts}
    tensors = {name: {'fp32': tensor.data} for part in parts for name, tensor in found[part].items()}
    if len(files) > 1:
        index = json.load(open(f'{folder}/{stem}.{kind}.index.json'))
        assert parts == [f'{stem}-{i + 1:05}-of-{len(parts):05}.{kind}' for i in range(len(parts))], files
        assert index['weight_map'] == {name: part for part in parts for name in found[part]}, index
        assert index['metadata']['total_size'] == sum(len(tensor['fp32']) for tensor in tensors.values())
    return f'{len(parts)} file(s)', tensors


def main(a, b):
    is_export = not any('mp_rank' in file for file in os.listdir(b))
    (of, first), (to, second) = gather(a), export(b) if is_export else gather(b)
    differences = sorted(first.keys() ^ second.keys())
    count = elements = 0
    for name in first.keys() & second.keys():
        for state, data in second[name].items():
            count, elements = count + 1, elements + len(data) // 4
            if data != first[name][state]:
                differences.append(f'{name} {state}')
    for difference in differences:
        print(f'differs: {difference}')
    print(f'{of} to {to}: {count} tensors, {elements} elements, {len(differences)} differences')
    return 1 if differences or not count else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
