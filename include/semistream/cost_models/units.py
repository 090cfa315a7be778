"""Units, defined once: sizes are bytes or tuples, costs and times are seconds, rates are tuples a
second.

The papers give costs in nanoseconds and multiply each c_loop by 10^-9. Here costs are seconds from
the start, so that the factor does not appear in the equations; ``NANOSECOND`` converts a paper's
number.
"""

NANOSECOND = 1e-9  # seconds
MICROSECOND = 1e-6  # seconds
MEGABYTE = 1_000_000  # bytes
