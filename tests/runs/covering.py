"""Rows of a test matrix that have every pair of values of every two columns."""
import itertools


def covering(options, wanted=()):
    """The options that have together every pair that any of them has, with all the `wanted` ones (predicates) among them. Each is
    chosen for the pairs that none before it has. An option is a tuple of values. The same options give the same rows."""
    bits = {}
    masks = [sum({1 << bits.setdefault(pair, len(bits)) for pair in itertools.combinations(enumerate(option), 2)})
             for option in options]
    missing, chosen = (1 << len(bits)) - 1, []
    tests = [*wanted]
    while missing or tests:
        is_wanted = tests.pop(0) if tests else lambda _: True
        best = max((i for i, option in enumerate(options) if is_wanted(option)), key=lambda i: (masks[i] & missing).bit_count())
        chosen.append(options[best])
        missing &= ~masks[best]
    return chosen
