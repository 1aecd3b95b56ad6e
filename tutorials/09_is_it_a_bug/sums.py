#!/usr/bin/env python3
"""Adds the same numbers in several orders, rounded to fp32 after each addition. IEEE 754 fixes every digit."""
from functools import reduce
from struct import pack, unpack


def fp32(x):
    return unpack("f", pack("f", x))[0]


def add(a, b):
    return fp32(a + b)


print("(2^24 + 1) + 1 =", add(add(2**24, 1), 1))
print("2^24 + (1 + 1) =", add(2**24, add(1, 1)))
terms = [fp32(1 / i) for i in range(1, 4097)]
print(f"1 + 1/2 + ... + 1/4096 in this order: {reduce(add, terms):.6f}")
print(f"from the last to the first:           {reduce(add, terms[::-1]):.6f}")
print(f"two halves, then their sum:           {add(reduce(add, terms[:2048]), reduce(add, terms[2048:])):.6f}")
print(f"in float64:                           {sum(1 / i for i in range(1, 4097)):.6f}")
