"""Root finding for equations in one unknown."""

from __future__ import annotations

from collections.abc import Callable

CLOSE = 1e-6


def crossing(f: Callable[[float], float], low: float, high: float, near: float) -> float:
    """Return the x in [low, high] at which an increasing f turns from negative to positive, exact
    to a millionth. near: where it probably is.

    The result is ``low`` if f is never negative, and ``high`` if it is always negative. If f jumps
    there, x is just below the jump. The method is regula falsi with the Illinois rule; every third
    step is a bisection.
    """
    x = min(max(near, low), high)
    y = f(x)
    # outwards from there, in steps that grow, up to a value of the other sign
    width, end = (1.0, high) if y < 0 else (-1.0, low)
    before, at_before = x, y
    while (y < 0) == (at_before < 0):
        if x == end:
            return end
        before, at_before = x, y
        x = min(x + width, high) if width > 0 else max(x + width, low)
        y, width = f(x), 2 * width
    low, at_low, high, at_high = (
        (before, at_before, x, y) if at_before < 0 else (x, y, before, at_before)
    )
    step = side = 0
    while high - low > CLOSE:
        step += 1
        x = (low + high) / 2 if step % 3 == 0 else low + (high - low) * at_low / (at_low - at_high)
        y = f(x)
        if abs(y) < CLOSE:
            return x
        if y < 0:
            low, at_low, at_high = x, y, at_high / 2 if side < 0 else at_high
        else:
            high, at_high, at_low = x, y, at_low / 2 if side > 0 else at_low
        side = -1 if y < 0 else 1
    return low
