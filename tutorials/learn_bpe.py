#!/usr/bin/env python3
"""Learns the vocabulary of a GPT2BPETokenizer from a text:

  learn_bpe.py TEXT SIZE FOLDER    writes FOLDER/vocab.json and FOLDER/merges.txt, SIZE tokens with <|endoftext|>

The tokens are the 256 bytes and what the most frequent pair of tokens makes, again and again. A pair never crosses the border of
two words. A text with too few words gives a smaller vocabulary.
"""
import collections
import json
import pathlib
import re
import sys

# GPT-2 writes a byte as a character that can be seen.
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
LETTERS = {byte: chr(byte) for byte in VISIBLE} | {byte: chr(256 + i) for i, byte in enumerate(HIDDEN)}
WORD = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def learn(words, count):
    """Returns up to `count` merges. `words` are [tokens, frequency], and are merged in place."""
    pairs, places = collections.Counter(), collections.defaultdict(set)

    def add(i, sign):
        tokens, frequency = words[i]
        for pair in zip(tokens, tokens[1:]):
            pairs[pair] += sign * frequency
            places[pair].add(i)

    for i in range(len(words)):
        add(i, 1)
    merges = []
    while len(merges) < count and pairs:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        for i in sorted(places[best]):
            add(i, -1)
            tokens = words[i][0]
            for at in range(len(tokens) - 1):
                if tuple(tokens[at:at + 2]) == best:
                    tokens[at:at + 2] = [best[0] + best[1]]
            add(i, 1)
        del pairs[best]
    return merges


text, size, folder = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), int(sys.argv[2]), pathlib.Path(sys.argv[3])
frequencies = collections.Counter(WORD.findall(text))
merges = learn([([LETTERS[byte] for byte in word.encode()], n) for word, n in frequencies.items()], size - 257)
tokens = [LETTERS[byte] for byte in VISIBLE + HIDDEN] + [a + b for a, b in merges] + ["<|endoftext|>"]
(folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
(folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
