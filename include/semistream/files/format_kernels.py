"""Numba kernels that read dates, times and numbers from the cells of a column, in a declared
format."""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit

# operations of a time format: a directive, or LITERAL + a byte
OPERATIONS = {d: i for i, d in enumerate("YymbBdHIpMSfz")}
YEAR, YEAR2, MONTH, SHORT, LONG, DAY, HOUR, HOUR12, HALF, MINUTE, SECOND, FRACTION, ZONE = range(13)
LITERAL = 256
DATE_WIDTH, CLOCK_WIDTH, FRACTION_WIDTH, ZONE_WIDTH = 10, 9, 7, 6  # bytes of the output
MOST_GROWTH = 5  # bytes by which a number may grow
COLON, PLUS, MINUS, POINT, ZERO = ord(":"), ord("+"), ord("-"), ord("."), ord("0")
PERCENT, BLANK, LOWER_Z, APOSTROPHE = ord("%"), ord(" "), ord("z"), ord("'")
MONTHS = np.frombuffer(
    "".join(
        f"{m:<9}"
        for m in (
            "january",
            "february",
            "march",
            "april",
            "may",
            "june",
            "july",
            "august",
            "september",
            "october",
            "november",
            "december",
        )
    ).encode(),
    np.uint8,
).reshape(12, 9)
DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


@njit(cache=True)
def read_times(offsets, data, valid, operations, width, out, fits):
    """Write each cell that fits the format as YYYY-MM-DD HH:MM:SS.ffffff+HH:MM, cut to ``width``
    bytes.

    in      offsets int32[n + 1], data uint8[…], valid bool[n], operations int32[k], the format
    out     out uint8[n * width], fits bool[n]: whether the cell is written
    """
    part = np.zeros(16, np.int64)
    fraction = (operations == FRACTION).any()
    zone = (operations == ZONE).any()
    clock = (operations == HOUR).any() or (operations == HOUR12).any()
    for r in range(len(fits)):
        fits[r] = valid[r] and _time(data, offsets[r], offsets[r + 1], operations, part)
        if not fits[r]:
            continue
        at = r * width
        at = _digits(out, at, part[YEAR], 4)
        at = _after(MINUS, out, at, part[MONTH], 2)
        at = _after(MINUS, out, at, part[DAY], 2)
        if clock:
            at = _after(BLANK, out, at, part[HOUR], 2)
            at = _after(COLON, out, at, part[MINUTE], 2)
            at = _after(COLON, out, at, part[SECOND], 2)
        if fraction:
            at = _after(POINT, out, at, part[FRACTION], 6)
        if zone:
            at = _after(MINUS if part[ZONE] < 0 else PLUS, out, at, abs(part[ZONE]) // 60, 2)
            at = _after(COLON, out, at, abs(part[ZONE]) % 60, 2)


@njit(inline="always")
def _after(separator, out, at, value, count):
    """Write a separator, followed by a number of `count` digits. Return the position after the
    number.

    out     out uint8[…]
    """
    out[at] = separator
    return _digits(out, at + 1, value, count)


@njit(inline="always")
def _digits(out, at, value, count):
    """Write a number with `count` digits. Return the position after the number.

    out     out uint8[…]
    """
    for k in range(count):
        out[at + count - 1 - k] = ZERO + value % 10
        value //= 10
    return at + count


@njit(cache=True)
def _time(data, i, end, operations, part):
    """Read a date or time from the cell data[i:end]. Return False if the cell does not fit the
    operations, or is not a valid day and time.

    in      data uint8[…], operations int32[k]
    out     part int64[16]: the number that each operation has read, at the operation's index; YEAR,
            MONTH and HOUR are numbers in any format, ZONE is in minutes
    """
    part[:] = 0
    for k in range(len(operations)):
        op = operations[k]
        if op >= LITERAL:
            if i >= end or data[i] != op - LITERAL:
                return False
            i += 1
        elif op in (SHORT, LONG):
            found = _month(data, i, end, op == SHORT)
            if not found:
                return False
            part[MONTH] = found // 16
            i += found % 16
        elif op == HALF:
            if (
                i + 2 > end
                or data[i + 1] | 32 != 109
                or (data[i] | 32 != 97 and data[i] | 32 != 112)
            ):
                return False
            part[HALF] = 1 if data[i] | 32 == 112 else 0
            i += 2
        elif op == ZONE:
            i = _zone(data, i, end, part)
            if i < 0:
                return False
        else:
            most = 4 if op == YEAR else 6 if op == FRACTION else 2
            # if digits of another directive are adjacent, the number of digits separates them
            close = (k + 1 < len(operations) and _is_number(operations[k + 1])) or (
                k > 0 and op != FRACTION and _is_number(operations[k - 1])
            )
            least = most if op in (YEAR, YEAR2) or close else 1
            first, value = i, 0
            while i < end and i - first < most and ZERO <= data[i] <= ZERO + 9:
                value = value * 10 + (data[i] - ZERO)
                i += 1
            if i - first < least:
                return False
            if op == FRACTION:
                for _ in range(6 - (i - first)):
                    value *= 10
            part[op] = value
            if op == YEAR2:
                part[YEAR] = value + (1900 if value >= 69 else 2000)
            elif op == HOUR12:
                if value < 1 or value > 12:
                    return False
                part[HOUR] = value % 12
    part[HOUR] += 12 * part[HALF]
    if i != end or part[YEAR] < 1 or part[MONTH] < 1 or part[MONTH] > 12 or part[DAY] < 1:
        return False
    year = part[YEAR]
    leap = part[MONTH] == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (
        part[DAY] <= DAYS[part[MONTH] - 1] + leap
        and part[HOUR] < 24
        and part[MINUTE] < 60
        and part[SECOND] < 60
    )


@njit(inline="always")
def _is_number(op):
    """Return whether an operation reads digits only."""
    return op < LITERAL and op not in (SHORT, LONG, HALF, ZONE)


@njit(cache=True)
def _month(data, i, end, short):
    """Read the name of a month in any case. Return 16 times the month's number plus the name's
    length; 0 if there is no name of a month.

    in      data uint8[…]
    """
    for m in range(12):
        length = 3
        if not short:
            while length < 9 and MONTHS[m, length] != BLANK:
                length += 1
        if i + length > end:
            continue
        same = True
        for k in range(length):
            same = same and data[i + k] | 32 == MONTHS[m, k]
        if same:
            return 16 * (m + 1) + length
    return 0


@njit(cache=True)
def _zone(data, i, end, part):
    """Read a time zone: Z, +HH:MM or +HHMM. Return the position after it; -1 if there is no time
    zone.

    in      data uint8[…]
    out     part int64[16]: ZONE in minutes
    """
    if i < end and data[i] | 32 == LOWER_Z:
        return i + 1
    if i >= end or (data[i] != PLUS and data[i] != MINUS):
        return -1
    negative, value, count = data[i] == MINUS, 0, 0
    i += 1
    while i < end and count < 4:
        if data[i] == COLON and count == 2:
            i += 1
            continue
        if data[i] < ZERO or data[i] > ZERO + 9:
            break
        value = value * 10 + (data[i] - ZERO)
        count += 1
        i += 1
    if count != 4 or value // 100 > 23 or value % 100 > 59:
        return -1
    minutes = value // 100 * 60 + value % 100
    part[ZONE] = -minutes if negative else minutes
    return i


@njit(cache=True)
def read_numbers(
    offsets, data, valid, decimal, thousands, percent, signs, sign_ends, out, ends, fits
):
    """Write each cell that is a number of the format as a plain number, with a point before its
    fraction. percent: whether the number has a per cent sign, and is divided by 100.

    in      offsets int32[n + 1], data uint8[…], valid bool[n]; decimal, thousands: the separators,
            thousands 0 for none; signs uint8[…], sign_ends int32[k]: what may stand at either end
    out     out uint8[…], ends int32[n + 1]: where each number begins and ends, fits bool[n]
    """
    at = 0
    for r in range(len(fits)):
        ends[r] = at
        if valid[r]:
            until = _number(
                data,
                offsets[r],
                offsets[r + 1],
                decimal,
                thousands,
                percent,
                signs,
                sign_ends,
                out,
                at,
            )
            fits[r] = until > at
            at = max(until, at)
    ends[len(fits)] = at


@njit(cache=True)
def _sign_width(data, i, end, sign):
    """Return the bytes of the sign that begins at data[i], 0 if it is a different sign. BLANK
    stands for any blank; apostrophe and minus have two forms each.

    in      data uint8[…]
    """
    if i >= end:
        return 0
    if data[i] == sign:
        return 1
    if sign == BLANK and i + 1 < end and data[i] == 0xC2 and data[i + 1] == 0xA0:
        return 2
    if i + 2 < end and data[i] == 0xE2 and data[i + 1] == 0x80:
        last = data[i + 2]
        if (sign == BLANK and last in (0x87, 0x89, 0xAF)) or (sign == APOSTROPHE and last == 0x99):
            return 3
    if (
        sign == MINUS
        and i + 2 < end
        and data[i] == 0xE2
        and data[i + 1] == 0x88
        and data[i + 2] == 0x92
    ):
        return 3
    return 0


@njit(cache=True)
def _blanks(data, i, end):
    """Return the end of the blanks that begin at position i.

    in      data uint8[…]
    """
    width = _sign_width(data, i, end, BLANK)
    while width:
        i += width
        width = _sign_width(data, i, end, BLANK)
    return i


@njit(cache=True)
def _sign_at(data, i, end, signs, sign_ends, last):
    """Return the length of the sign that begins at data[i], or of the sign that ends at data[end]
    if ``last`` is true; 0 if there is no sign.

    in      data uint8[…], signs uint8[…], sign_ends int32[k], longer ones first
    """
    first = 0
    for k in range(len(sign_ends)):
        length = sign_ends[k] - first
        if length <= end - i:
            same, start = True, end - length if last else i
            for b in range(length):
                same = same and data[start + b] == signs[first + b]
            if same:
                return length
        first = sign_ends[k]
    return 0


@njit(cache=True)
def _number(data, i, end, decimal, thousands, percent, signs, sign_ends, out, at):
    """Write the number data[i:end] to out, from out[at] on. Return the position after it; 0 if the
    text is not a number.

    in      data uint8[…], signs uint8[…], sign_ends int32[k]
    out     out uint8[…]
    """
    before = _sign_at(data, i, end, signs, sign_ends, False)
    if before:
        i = _blanks(data, i + before, end)
    minus = _sign_width(data, i, end, MINUS)
    if minus or (i < end and data[i] == PLUS):
        if minus:
            out[at] = MINUS
            at += 1
        i = _blanks(data, i + max(minus, 1), end)
        if not before:
            before = _sign_at(data, i, end, signs, sign_ends, False)
            i = _blanks(data, i + before, end) if before else i
    after = 0 if before else _sign_at(data, i, end, signs, sign_ends, True)
    end -= after
    if percent:
        if end <= i or data[end - 1] != PERCENT:
            return 0
        end -= 1
        after = 1
    # the whole part: plain, or in groups of three after a first group
    start, whole, group, groups = at, 0, 0, 0
    while i < end and data[i] != decimal:
        if ZERO <= data[i] <= ZERO + 9:
            group += 1
            whole += 1
            out[at] = data[i]
            at += 1
            i += 1
            continue
        width = _sign_width(data, i, end, thousands) if thousands else 0
        if not width or (thousands == BLANK and _blanks(data, i, end) == end):
            break
        if group == 0 or group > 3 or (groups and group != 3):
            return 0
        groups += 1
        group = 0
        i += width
    if groups and group != 3:
        return 0
    behind = 0
    if i < end and data[i] == decimal:
        i += 1
        while i < end and ZERO <= data[i] <= ZERO + 9:
            out[at] = data[i]
            at += 1
            behind += 1
            i += 1
    if after:
        i = _blanks(data, i, end)
    if i != end or whole + behind == 0:
        return 0
    scale = behind + (2 if percent else 0)
    # at least one digit before the point, and no leading zeros
    count = whole + behind
    while count <= scale:
        for k in range(count):
            out[start + count - k] = out[start + count - k - 1]
        out[start] = ZERO
        count += 1
    zeros = 0
    while zeros < count - scale - 1 and out[start + zeros] == ZERO:
        zeros += 1
    count -= zeros
    for k in range(count):
        out[start + k] = out[start + zeros + k]
    at = start + count
    if scale:
        for k in range(scale):
            out[at - k] = out[at - k - 1]
        out[at - scale] = POINT
        at += 1
    return at
