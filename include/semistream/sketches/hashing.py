"""Four-wise independent hash values of key codes: random polynomials of degree 3 over GF(2**61 -
1).

M. N. Wegman, J. L. Carter: New hash functions and their use in authentication and set equality
(1981). The values of a random polynomial of degree 3 at any four points are independent and
uniform. A key code of 64 bits is first mapped into the field by a random linear function of its
halves (L. Carter, M. N. Wegman: Universal classes of hash functions, 1979): two codes are mapped to
one point with probability 2**-61, and otherwise their values are four-wise independent with any
others.

One value serves for several signs, or for a sign and a bucket, because its bits are independent of
each other: a bit is 1 with probability 1/2 - 2**-62.
"""

from __future__ import annotations

import hashlib

import numpy as np

from semistream.compiled import filled, intrinsic, njit

BITS = 61
PRIME = np.uint64(2**BITS - 1)
COEFFICIENTS = 4  # coefficients of a polynomial of degree 3
SIGNS = 60  # signs from one value


def random_field_elements(seed: int, purpose: str, count: int) -> np.ndarray:
    """Return uint64[count], uniform in the field, from SHAKE-256. They are the same on every
    machine and with every version of NumPy."""
    words = np.frombuffer(hashlib.shake_256(f"{purpose} {seed}".encode()).digest(8 * count), "<u8")
    return (words & PRIME) % PRIME


@intrinsic
def _product(typingctx, a, b):
    """Return the 128 bits of a * b, as (low, high) uint64."""
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        low = builder.trunc(product, word)
        high = builder.trunc(builder.lshr(product, wide(64)), word)
        return context.make_tuple(builder, signature.return_type, (low, high))

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), codegen


@njit(inline="always")
def _reduced(x, bits):
    """Return x mod 2**bits - 1, for x < 2**(bits + 1) - 2."""
    prime = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return x - prime if x >= prime else x


@njit(inline="always")
def multiply(a, b, bits):
    """Return a * b mod 2**bits - 1, for uint64 arguments below this modulus."""
    prime = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    low, high = _product(a, b)
    return _reduced(
        (low & prime) + ((low >> np.uint64(bits)) | (high << np.uint64(64 - bits))), bits
    )


@njit(inline="always")
def polynomial(x, a, b, c, d, bits):
    """Return a x**3 + b x**2 + c x + d mod 2**bits - 1, for uint64 arguments below this modulus.
    bits: the exponent of a Mersenne prime."""
    y = _reduced(multiply(a, x, bits) + b, bits)
    y = _reduced(multiply(y, x, bits) + c, bits)
    return _reduced(multiply(y, x, bits) + d, bits)


def field_elements(codes: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Return the points of the field, uint64[n], for key codes, int64[n], by the random linear
    function linear, uint64[3]."""
    return filled(_field_elements, len(codes), np.uint64, codes, linear)


@njit(cache=True)
def _field_elements(codes, linear, out):
    """Write ``field_elements``.

    in      codes int64[n], linear uint64[3]
    out     out uint64[n]
    """
    for i in range(len(codes)):
        code = np.uint64(codes[i])
        y = multiply(linear[0], code >> np.uint64(32), BITS)
        y = _reduced(y + multiply(linear[1], code & np.uint64(0xFFFFFFFF), BITS), BITS)
        out[i] = _reduced(y + linear[2], BITS)
