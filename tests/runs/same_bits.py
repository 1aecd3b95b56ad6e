#!/usr/bin/env python3
"""The rows of same_bits.sh: which run is compared with one process, and resumed from which, covering every pair of values of
every two columns.

    same_bits.py > rows       always the same

A row is a model, a mesh (tp,pp,dp), a ZeRO stage, whole or cut sequences, activations that are kept or recomputed, the
micro-batch size, threads of a rank, and where the optimizer's state is.
"""
import itertools

from covering import covering

MODELS = ['gpt', 'untied', 'llama', 'half', 'documents']
MESHES = ['4,1,1', '1,3,2', '1,1,3', '1,1,4', '1,1,6', '2,2,2', '2,1,3']


def works(row):
    _, mesh, zero, sequence, _, micro_batch, _, offload = row
    tp, _, dp = map(int, mesh.split(','))
    return (sequence == 'whole' or tp > 1) and (offload == 'none' or zero != '0') and 12 % (dp * int(micro_batch)) == 0


def main():
    rows = itertools.product(MODELS, MESHES, '0123', ['whole', 'cut'], ['keep', 'recompute'], '124', '12', ['none', 'nvme'])
    for row in sorted(covering([row for row in rows if works(row)])):
        print(*row)


if __name__ == '__main__':
    main()
