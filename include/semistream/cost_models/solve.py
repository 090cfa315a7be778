"""Root finding for equations in one unknown."""

from __future__ import annotations

from collections.abc import Callable

CLOSE = 1e-6


def crossing(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the x in [low, high] at which an increasing f turns from negative to positive, exact
    to a millionth.

    The result is ``low`` if f is never negative, and ``high`` if it is always negative. If f jumps
    there, x is just below the jump. The method is regula falsi with the Illinois rule; every third
    step is a bisection.
    """
    at_low, at_high = f(low), f(high)
    if at_low >= 0:
        return low
    if at_high < 0:
        return high
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
