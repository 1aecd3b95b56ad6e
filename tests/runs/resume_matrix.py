#!/usr/bin/env python3
"""The rows of resume_matrix.sh: which run is resumed where, covering every pair of values of every two columns.

    resume_matrix.py > rows       always the same

A row is an architecture, a run that saves (mesh, ZeRO stage, precision, activations, sequence), one that loads (the
same five) and the way between them. Testing all rows is out of reach (there are about 10^6), but nearly every bug shows
with two values: ZeRO 3 into tp 4, fp16 out of dp 7. So each row is chosen greedily to cover as many pairs that no row
before it covers as it can. That needs one row for every two meshes at least. Rows share the runs that save, of which
there are as few as cover the pairs on their side.
"""
import collections
import itertools
import math

# Meshes are tp,pp,dp. Only the pp sizes 1 and 5 divide the five layers.
MESHES = ['1,1,1', '1,1,7', '1,1,5', '1,2,3', '3,1,2', '2,3,1', '2,4,1', '4,2,1', '1,5,1']
SIDE = {
    'mesh': MESHES,
    'zero': ['0', '1', '2', '3'],
    'precision': ['fp32', 'bf16', 'fp16'],
    'activations': ['keep', 'recompute'],
    'sequence': ['whole', 'cut'],
}
FACTORS = {'arch': ['gpt', 'gpt-untied', 'llama', 'llama-tiny', 'bloom']}
FACTORS |= {'from ' + name: values for name, values in SIDE.items()}
FACTORS |= {'to ' + name: values for name, values in SIDE.items()}
FACTORS |= {'way': ['universal', 'direct', 'converts']}
# Other families of models are made of the same layers, so each has one row: that of a GPT with the family in its place.
FAMILIES = ['mistral', 'qwen2', 'qwen3', 'gemma', 'gpt-neox', 'opt', 'phi3', 'falcon']
SOURCE = [name for name in FACTORS if name == 'arch' or name.startswith('from ')]
# Seven ranks share norms of four elements. With ZeRO 1 and 2 one of them has only padding in the group of norms.
CORNERS = [{'arch': 'llama-tiny', side + ' mesh': '1,1,7', side + ' zero': zero}
           for side in ('from', 'to') for zero in ('1', '2', '3')]


def permitted(row):
    """Can these values, of some of the factors, be in one row?  The four heads of llama-tiny have no three parts."""
    meshes = [row[name] for name in ('from mesh', 'to mesh') if name in row]
    return row.get('arch') != 'llama-tiny' or not any(mesh.startswith('3,') for mesh in meshes)


def agree(a, b):
    return all(b.get(name, value) == value for name, value in a.items())


def pairs(row):
    return set(itertools.combinations(row.items(), 2))


def all_pairs(names):
    """Every pair that a permitted row can have: rules are about two factors, so a permitted pair has a row."""
    return {pair: None for a, b in itertools.combinations(names, 2)
            for pair in itertools.product(((a, v) for v in FACTORS[a]), ((b, v) for v in FACTORS[b]))
            if permitted(dict(pair))}


def ordered(row):
    return {name: row[name] for name in FACTORS if name in row}


def completed(row, names, uncovered, used):
    """`row` with values for `names`, the many-valued first: each the one that covers most, then the least used."""
    for name in sorted(names, key=lambda name: -len(FACTORS[name])):
        if name not in row:
            options = [ordered(row | {name: value}) for value in FACTORS[name]]
            row = max(filter(permitted, options),
                      key=lambda option: (len(pairs(option) & uncovered.keys()), -used[name, option[name]]))
    return row


def covering(names, starts, wanted):
    """Rows of `names` with all the `wanted` partial ones and all pairs; starts(wanted, uncovered) are what a row may
    begin with."""
    rows, used, uncovered = [], collections.Counter(), all_pairs(names)
    wanted = list(wanted)
    while uncovered or wanted:
        begin = starts(wanted.pop(0) if wanted else {}, uncovered)
        options = [completed(start, names, uncovered, used) for start in begin]
        row = max(options, key=lambda row: (len(pairs(row) & uncovered.keys()), -sum(used[item] for item in row.items())))
        rows.append(row)
        used.update(row.items())
        for pair in pairs(row):
            uncovered.pop(pair, None)
    return rows


def generate():
    sources = covering(SOURCE, lambda wanted, uncovered: [wanted or dict(next(iter(uncovered)))],
                       [corner for corner in CORNERS if corner.keys() <= set(SOURCE)])
    rows = covering(list(FACTORS),
                    lambda wanted, _: [ordered(source | wanted) for source in sources if agree(source, wanted)], CORNERS)
    places = [row for row in rows if row['arch'] == 'gpt'][1::2]
    rows += [row | {'arch': family} for row, family in zip(places, FAMILIES, strict=True)]
    archs = FACTORS['arch'] + FAMILIES
    return sorted(rows, key=lambda row: [(archs if name == 'arch' else FACTORS[name]).index(value) for name, value in row.items()])


def main():
    """Prints the rows, each with the global batch: two micro-batches on each data-parallel rank of all that share a source."""
    for _, group in itertools.groupby(generate(), key=lambda row: [row[name] for name in SOURCE]):
        group = list(group)
        batch = 2 * math.lcm(*(int(row[name].split(',')[2]) for row in group for name in ('from mesh', 'to mesh')))
        for row in group:
            print(*row.values(), batch)


if __name__ == '__main__':
    main()
