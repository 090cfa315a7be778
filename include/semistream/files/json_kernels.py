"""Kernels that find the values of JSON objects, strictly by RFC 8259. Each value keeps its notation
in the file, and a malformed object costs only its line.

NaN, Infinity and -Infinity, which many programs write, are accepted as numbers.
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit

# kinds of values; MISSING: the object lacks the key; ESCAPED: a string with a backslash
MISSING, NOTHING, STRING, ESCAPED, NUMBER, TRUTH, NESTED = range(7)
INCOMPLETE, MALFORMED = -1, -2  # returned in the place of a value's end
DEPTH = 512  # most levels of nested values
QUOTE, BACKSLASH, COMMA, COLON = ord('"'), ord("\\"), ord(","), ord(":")
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = ord("{"), ord("}"), ord("["), ord("]")
LF, CR, TAB, BLANK, ZERO, NINE = 10, 13, 9, 32, 48, 57
WORDS = np.frombuffer(b"true    false   null    NaN     Infinity", np.uint8).reshape(5, 8)
LENGTHS = np.array([4, 5, 4, 3, 8])


@njit(cache=True)
def scan(data, bounds, final, listed, keys, key_ends, starts, ends, good, at, until, kind, unknown):
    """Find the objects in data, and their values of the known keys. Return (objects and malformed
    lines, bytes consumed, unknown keys found).

    bounds: the end of each object's text, if known, in which case nothing else ends an object;
    final: whether nothing follows the data; listed: whether the objects are elements of a list,
    separated by commas. Keys are compared as they are in the file, including backslashes.

    in      data uint8[n], bounds int64[m], keys uint8[…], key_ends int64[c]
    out     starts int64[r], ends int64[r], good bool[r]: of each object or malformed line;
            at int32[r, c], until int32[r, c], kind uint8[r, c]: its values;
            unknown int64[u, 2]: start and end of keys that are not known
    """
    i, n, row, found = 0, len(data), 0, 0
    bounded = len(bounds) > 0
    while row < len(starts):
        if bounded:
            if row == len(bounds):
                return row, n, found
            i, n = (bounds[row - 1] if row else 0), bounds[row]
        while i < n and (
            _blank(data[i])
            or (listed and (data[i] == COMMA or data[i] == CLOSE_LIST or data[i] == OPEN_LIST))
        ):
            i += 1
        if i >= n and not bounded:
            return row, n, found
        kind[row] = MISSING
        end, more = _object(
            data, i, n, keys, key_ends, at[row], until[row], kind[row], unknown, found
        )
        if end == INCOMPLETE and not final and not bounded:
            return row, i, found
        if end > 0:
            last = _skip(data, end, n) if bounded else _blanks(data, end, n)
            if last < n and (bounded or data[last] != LF) and not listed:
                end = MALFORMED  # something else follows in its line
        starts[row], good[row] = i, end > 0
        if end > 0:
            ends[row], found, i = end, more, end
        else:
            last = i
            while last < n and (data[last] != LF or bounded):
                last += 1
            if last == n and not final and not bounded:
                return row, i, found
            i = last
            while last > starts[row] and _blank(data[last - 1]):
                last -= 1
            ends[row] = last
        row += 1
    return row, i, found


@njit(cache=True)
def _object(data, i, n, keys, key_ends, at, until, kind, unknown, found):
    """Read an object. Return (its end, unknown keys found).

    in      data uint8[n], keys uint8[…], key_ends int64[c]
    out     at int32[c], until int32[c], kind uint8[c], unknown int64[u, 2]
    """
    guess = 0
    if i >= n or data[i] != OPEN:
        return MALFORMED, found
    i = _skip(data, i + 1, n)
    if i < n and data[i] == CLOSE:
        return i + 1, found
    while True:
        if i >= n:
            return INCOMPLETE, found
        if data[i] != QUOTE:
            return MALFORMED, found
        end, what = _string(data, i, n)
        if end < 0:
            return end, found
        key = _find(data, i + 1, end - 1, keys, key_ends, guess)
        if key >= 0:
            guess = key + 1
        elif found < len(unknown):
            unknown[found, 0], unknown[found, 1] = i + 1, end - 1
            found += 1
        i = _skip(data, end, n)
        if i >= n:
            return INCOMPLETE, found
        if data[i] != COLON:
            return MALFORMED, found
        i = _skip(data, i + 1, n)
        end, what = _value(data, i, n)
        if end < 0:
            return end, found
        if key >= 0 and kind[key] != MISSING:
            return MALFORMED, found  # a repeated key: one of its two values would be lost
        if key >= 0:
            inside = what in (STRING, ESCAPED)
            at[key], until[key], kind[key] = i + inside, end - inside, what
        i = _skip(data, end, n)
        if i >= n:
            return INCOMPLETE, found
        if data[i] == CLOSE:
            return i + 1, found
        if data[i] != COMMA:
            return MALFORMED, found
        i = _skip(data, i + 1, n)


@njit(cache=True)
def _find(data, start, end, keys, key_ends, guess):
    """Return the number of a key; -1 if the key is unknown. The key number ``guess`` is tried
    first.

    in      data uint8[…], keys uint8[…], key_ends int64[c]
    """
    count = len(key_ends)
    for turn in range(count):
        k = guess + turn
        if k >= count:
            k -= count
        first = key_ends[k - 1] if k else 0
        if key_ends[k] - first != end - start:
            continue
        same = True
        for j in range(end - start):
            if data[start + j] != keys[first + j]:
                same = False
                break
        if same:
            return k
    return -1


@njit(cache=True)
def _value(data, i, n):
    """Read any value. Return (its end, its kind).

    in      data uint8[n]
    """
    if i >= n:
        return INCOMPLETE, NOTHING
    if data[i] == QUOTE:
        return _string(data, i, n)
    if data[i] == OPEN or data[i] == OPEN_LIST:
        return _nested(data, i, n), NESTED
    return _plain(data, i, n)


@njit(cache=True)
def _plain(data, i, n):
    """Read a number or a word. Return (its end, its kind).

    in      data uint8[n]
    """
    minus = data[i] == 45
    first = i + minus
    for w in range(5):
        length, j = LENGTHS[w], 0
        while j < length and first + j < n and data[first + j] == WORDS[w, j]:
            j += 1
        if j == length and not (minus and w != 4):
            return first + j, (TRUTH if w < 2 else NOTHING if w == 2 else NUMBER)
        if j and first + j == n and j < length:
            return INCOMPLETE, NOTHING
    i = first
    if i >= n:
        return INCOMPLETE, NOTHING
    if not (ZERO <= data[i] <= NINE):
        return MALFORMED, NOTHING
    if data[i] == ZERO:
        i += 1
        if i < n and ZERO <= data[i] <= NINE:
            return MALFORMED, NOTHING
    else:
        i = _digits(data, i, n)
    if i < n and data[i] == 46:
        first = i + 1
        i = _digits(data, first, n)
        if i == first:
            return (INCOMPLETE if i == n else MALFORMED), NOTHING
    if i < n and data[i] | 32 == 101:
        first = i + 1
        if first < n and (data[first] == 43 or data[first] == 45):
            first += 1
        i = _digits(data, first, n)
        if i == first:
            return (INCOMPLETE if i == n else MALFORMED), NOTHING
    return (INCOMPLETE if i == n else i), NUMBER


@njit(cache=True)
def _digits(data, i, n):
    """Return the end of the digits from i on.

    in      data uint8[n]
    """
    while i < n and ZERO <= data[i] <= NINE:
        i += 1
    return i


@njit(cache=True)
def _string(data, i, n):
    """Read a string, starting at its quote. Return (its end, STRING or ESCAPED).

    in      data uint8[n]
    """
    what = STRING
    i += 1
    while i < n:
        c = data[i]
        if c == QUOTE:
            return i + 1, what
        if c == BACKSLASH:
            what = ESCAPED
            i += 1
        elif c < BLANK:
            return MALFORMED, what
        i += 1
    return INCOMPLETE, what


@njit(cache=True)
def _nested(data, i, n):
    """Read an object or a list with any content. Return its end.

    in      data uint8[n]
    """
    inside = np.zeros(DEPTH, np.uint8)  # what closes each level
    depth, key, empty = 0, False, False
    while True:
        if i >= n:
            return INCOMPLETE
        c = data[i]
        if empty and c == inside[depth - 1]:  # the level is empty
            depth, i, empty = depth - 1, i + 1, False
        elif key:
            if c != QUOTE:
                return MALFORMED
            i, _ = _string(data, i, n)
            if i < 0:
                return i
            i = _skip(data, i, n)
            if i >= n:
                return INCOMPLETE
            if data[i] != COLON:
                return MALFORMED
            i, key, empty = _skip(data, i + 1, n), False, False
            continue
        elif c in (OPEN, OPEN_LIST):
            if depth == DEPTH:
                return MALFORMED
            inside[depth] = CLOSE if c == OPEN else CLOSE_LIST
            depth, i, key, empty = depth + 1, _skip(data, i + 1, n), c == OPEN, True
            continue
        else:
            empty = False
            i, _ = _string(data, i, n) if c == QUOTE else _plain(data, i, n)
            if i < 0:
                return i
        # after a value
        while True:
            if depth == 0:
                return i
            i = _skip(data, i, n)
            if i >= n:
                return INCOMPLETE
            if data[i] == COMMA:
                i, key = _skip(data, i + 1, n), inside[depth - 1] == CLOSE
                break
            if data[i] != inside[depth - 1]:
                return MALFORMED
            depth, i = depth - 1, i + 1


@njit(cache=True)
def _blank(c):
    return c in (BLANK, LF, CR, TAB)


@njit(cache=True)
def _skip(data, i, n):
    """Return the first position from i on that is not blank.

    in      data uint8[n]
    """
    while i < n and _blank(data[i]):
        i += 1
    return i


@njit(cache=True)
def _blanks(data, i, n):
    """Return the first position from i on that is not blank, or is the end of a line.

    in      data uint8[n]
    """
    while i < n and data[i] != LF and _blank(data[i]):
        i += 1
    return i


@njit(cache=True)
def gather(data, at, until, wanted, offsets, out):
    """Concatenate the wanted texts data[at:until] of a column, each up to the offset where the next
    one begins.

    in      data uint8[n], at int32[r], until int32[r], wanted bool[r], offsets int32[r + 1]
    out     out uint8[…]
    """
    for r in range(len(at)):
        if wanted[r]:
            out[offsets[r] : offsets[r + 1]] = data[at[r] : until[r]]
