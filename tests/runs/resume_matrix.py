#!/usr/bin/env python3
"""The rows of resume_matrix.sh: which run is resumed where, covering every pair of values of every two columns.

    resume_matrix.py > rows       always the same

A row is an architecture, a run that saves (mesh, ZeRO stage, precision, activations, sequence), one that loads (the
same five), the optimizer of both, the way between them, and the global batch. Testing all rows is out of reach (there are about 10^6), but
nearly every bug shows with two values: ZeRO 3 into tp 4, fp16 out of dp 7. That needs one row for every two meshes at
least. Rows share the runs that save, of which there are as few as cover the pairs on their side.
"""
import itertools
import math

from covering import covering

# Meshes are tp,pp,dp. Only the pp sizes 1 and 5 divide the five layers.
RUNS = list(itertools.product(['1,1,1', '1,1,7', '1,1,5', '1,2,3', '3,1,2', '2,3,1', '2,4,1', '4,2,1', '1,5,1'], '0123',
                              ['fp32', 'bf16', 'fp16'], ['keep', 'recompute'], ['whole', 'cut']))
ARCHS = ['gpt', 'gpt-untied', 'llama', 'llama-tiny', 'bloom']
WAYS = ['universal', 'direct', 'converts']
OPTIMIZERS = ['adam', 'sgd', 'lion', 'muon']
# Other families of models are made of the same layers, so each has one row: that of a GPT with the family in its place.
FAMILIES = ['mistral', 'qwen2', 'qwen3', 'gemma', 'gpt-neox', 'opt', 'phi3', 'falcon']


def runs_of(arch):
    """The four heads of llama-tiny have no three parts."""
    return [run for run in RUNS if arch != 'llama-tiny' or not run[0].startswith('3,')]


def corners(column):
    """Seven ranks share norms of four elements. With ZeRO 1 and 2 one of them has only padding in the group of norms."""
    return [lambda row, zero=zero: row[0] == 'llama-tiny' and row[column:column + 2] == ('1,1,7', zero) for zero in '123']


def main():
    """Prints the rows, each with two micro-batches on each data-parallel rank of all that share a source."""
    sources = covering([(arch, *run, optimizer) for arch in ARCHS for run in runs_of(arch) for optimizer in OPTIMIZERS], corners(1))
    rows = covering([(*source, *run, way) for source in sources for run in runs_of(source[0]) for way in WAYS],
                    corners(1) + corners(7))
    gpt = [row for row in rows if row[0] == 'gpt']
    rows += [(family, *gpt[2 * i + 1][1:]) for i, family in enumerate(FAMILIES)]
    for _, group in itertools.groupby(sorted(rows), key=lambda row: row[:7]):
        group = list(group)
        batch = 2 * math.lcm(*(int(mesh.split(',')[2]) for row in group for mesh in (row[1], row[7])))
        for row in group:
            print(*row, batch)


if __name__ == '__main__':
    main()
