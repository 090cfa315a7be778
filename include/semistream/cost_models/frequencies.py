"""The frequencies of join values in the stream: Zipf's law with any exponent, or an observed
histogram.

Both are represented by one class, because the models ask both for the same few numbers: join values
in groups of equal probability, most frequent first. A group of Zipf's law is a run of neighbouring
ranks; its mass is exact.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from semistream.cost_models.harmonic import harmonic
from semistream.errors import ConfigError

_DRAWN = 4_096  # partitions
_ROUNDING = 1e-12
_HALVINGS = 40
_SURE = 9  # standard deviations beyond which a count is taken as certainly above or below
_SINGLE, _RATIO = 256, 1.03  # first ranks, each a group; growth of the groups after them


class Cached(NamedTuple):
    """The content of a cache that holds only values that save more than their bytes cost."""

    keys: float  # values that have master tuples
    absent: float  # values that are known to have no master tuples
    hit: float  # share of the stream that both kinds of values serve
    lost: float  # the absent values' part of `hit`
    bytes: float


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The probabilities of join values, in groups. p: probability of each value of a group,
    float64[g], falling; keys: values in the group, float64[g].

    The probabilities add up to 1, or to less if some of the stream has no master tuple
    (``absent``). lost: the frequencies of these absent values, if known.
    """

    p: np.ndarray
    keys: np.ndarray
    name: str = ""
    lost: Frequencies | None = None

    @classmethod
    def zipf(cls, keys: int, exponent: float) -> Frequencies:
        """Return Zipf's law: the value of rank x has probability x**-exponent / H(keys, exponent).
        Raises ConfigError for numbers out of range."""
        if keys < 1:
            raise ConfigError(
                "keys",
                "must be at least 1",
                keys,
                "It is R_t, the number of different join values.",
            )
        if not 0 <= exponent < 100:
            raise ConfigError(
                "skew", "must be in [0, 100)", exponent, "0 is uniform, 1 is Zipf's law."
            )
        if exponent == 0:
            return cls(np.array([1.0 / keys]), np.array([float(keys)]), "uniform")
        many = max(int(np.log(max(keys / _SINGLE, 1)) / np.log(_RATIO)), 0)
        single = min(keys, _SINGLE)
        edges = np.unique(
            np.floor(np.concatenate([np.arange(single + 1), np.geomspace(single, keys, many + 2)]))
        )
        mass = np.diff(harmonic(edges, exponent))
        count = np.diff(edges)
        return cls(mass / count / mass.sum(), count, f"Zipf {exponent:g}")

    @classmethod
    def observed(cls, counts: np.ndarray, keys: int, absent: int = 0) -> Frequencies:
        """Estimate the frequencies from a sample. counts: int[n], how often each value of the
        sample occurred; keys: distinct values of R; absent: sampled tuples whose value R lacks.

        A sample overrates the rare values that it has and knows nothing of the others. Good's and
        Turing's estimate corrects both: a value seen r times is expected (r + 1) N_{r+1} / N_r
        times, where N_r values were seen r times. Unseen values share the rest, by a power law that
        continues from the rarest seen values.
        """
        counts = np.asarray(counts, np.int64)
        counts = counts[counts > 0]
        if not len(counts):
            return cls(
                np.array([1.0 / max(keys, 1)]),
                np.array([float(max(keys, 1))]),
                "taken as uniform, as none was observed",
            )
        seen, n_r = np.unique(counts, return_counts=True)
        total, unseen = float(counts.sum()), max(keys - len(counts), 0)
        p, many = _good_turing(seen, n_r.astype(np.float64)), n_r.astype(np.float64)
        missing = (
            min(max(total - float(p @ many), float(n_r[0]) if seen[0] == 1 else 0.0), 0.99 * total)
            if unseen
            else 0.0
        )
        p = p * (total - missing) / float(p @ many)
        if missing:
            tail = _tail(float(p[0]), float(len(counts)), float(unseen), missing)
            p, many = np.append(p, tail[0]), np.append(many, tail[1])
        order = np.argsort(-p, kind="stable")
        return cls(
            p[order] / (total + absent), many[order], f"observed in {int(total) + absent:,} tuples"
        )

    @cached_property
    def absent(self) -> float:
        """The share of stream tuples whose key R lacks. A share that is no larger than rounding
        errors is 0."""
        absent = 1.0 - float(self.p @ self.keys)
        return absent if absent > _ROUNDING else 0.0

    @cached_property
    def count(self) -> float:
        """Number of distinct values that can occur."""
        return float(self.keys.sum())

    @cached_property
    def _ends(self) -> np.ndarray:
        """Number of values before each group, and in all groups, float64[g + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.keys)])

    @cached_property
    def _shares(self) -> tuple[list[float], list[float]]:
        """The number of values before each group, and their share of the stream; as the last
        element, those of all groups. float[g + 1]."""
        return self._ends.tolist(), [0.0, *np.cumsum(self.p * self.keys).tolist()]

    @cached_property
    def _ranks(self) -> tuple[list[float], list[float]]:
        """-ln p of each group, ascending, and ln of the number of values up to its end."""
        rarity = -np.log(np.maximum(self.p, 1e-300))
        return rarity.tolist(), np.log(self._ends[1:]).tolist()

    @cached_property
    def _rejecting(self) -> dict[float, Frequencies]:
        """By share, what ``rejecting`` has returned: a search asks for few shares, very often."""
        return {}

    def top(self, h: float) -> float:
        """Return p_N, the share of the stream that the h most frequent values take."""
        return _interpolate(h, *self._shares)

    def above(self, probability: float) -> tuple[float, float]:
        """Return (number, share of the stream) of the values that are more probable than
        `probability`.

        Between two groups log h is linear in log p, as in a Zipf distribution: a group of values
        that were never seen is large, and far from the next group in p. If all values are equally
        probable, the result is none or all.
        """
        if probability >= self.p[0]:
            return 0.0, 0.0
        h = math.exp(_interpolate(-math.log(max(probability, 1e-300)), *self._ranks))
        return h, self.top(h)

    def recurring(self, tuples: float) -> float:
        """Return the share of the stream that has values which come at least once in so many
        tuples, on average. Of the others no cache knows that they are frequent."""
        return self.above(1 / max(tuples, 1.0))[1]

    def worth(
        self, least: float, least_absent: float, each: float, v_e: float, room: float
    ) -> Cached:
        """Return the values to cache: values more probable than `least`, and absent values more
        probable than `least_absent`. A value takes `each` bytes and an absent value v_e. If the
        values exceed `room` bytes, both numbers are scaled down."""
        keys, hit = self.above(least)
        absent, lost = self.lost.above(least_absent) if self.lost else (0.0, 0.0)
        taken = keys * each + absent * v_e
        if taken > room:
            keys, absent = keys * room / taken, absent * room / taken
            hit, lost, taken = self.top(keys), self.lost.top(absent) if self.lost else 0.0, room
        return Cached(keys, absent, hit + lost, lost, taken)

    def rejecting(self, share: float) -> Frequencies:
        """Return the frequencies in the remaining stream after a filter has rejected this share of
        the absent values."""
        if share not in self._rejecting:
            left = 1.0 - self.absent * share
            lost = self.lost and Frequencies(
                self.lost.p / left, self.lost.keys * (1 - share), self.lost.name
            )
            self._rejecting[share] = Frequencies(self.p / left, self.keys, self.name, lost)
        return self._rejecting[share]

    def different(self, draws: float) -> float:
        """Return the expected number of distinct values among `draws` stream tuples."""
        return float(self.keys @ -np.expm1(-draws * self.p))

    def without(self, h: float, share: float = 1.0) -> Frequencies:
        """Return the frequencies in the stream after a cache that serves the h most frequent
        values. share: the share of the tuples with these values that the cache serves."""
        left = self.keys - share * np.minimum(self.keys, np.maximum(h - self._ends[:-1], 0.0))
        which = left > 0
        rest = float(self.p[which] @ left[which]) + self.absent
        if not which.any() or rest <= 0:
            return Frequencies(np.array([0.0]), np.array([1.0]), self.name)
        return Frequencies(self.p[which] / rest, left[which], self.name)

    def split(self, h: float, draws: float) -> tuple[float, Frequencies]:
        """Return (hit, rest) for the h values that are most frequent among `draws` stream tuples:
        their share of the stream, and the frequencies in the rest of the stream, as in `without`.

        Some rare values are among these h by chance, and some more probable ones are not: a value
        of probability p occurs Poisson(p draws) times.
        """
        draws = max(draws, 1.0)
        rarity = -draws * self.p

        def few(count: int) -> bool:
            """Return whether at most h values are expected to occur more than `count` times."""
            spread = 8 * math.sqrt(count + 1) + 8  # more deviation is impossible in practice
            a, b = np.searchsorted(rarity, [-(count + spread), -(count - spread)])
            return self._ends[a] + float(self.keys[a:b] @ _poisson_above(count, -rarity[a:b])) <= h

        expected = int(draws * float(np.interp(h, self._ends[1:], self.p)))
        low = high = expected
        step = int(math.sqrt(expected)) + 1
        while low and few(low):
            low, high, step = max(low - step, 0), low, 2 * step
        while not few(high):
            low, high, step = high + 1, high + step, 2 * step
        while low < high:  # search for the least of these counts
            middle = (low + high) // 2
            low, high = (low, middle) if few(middle) else (middle + 1, high)
        above = _poisson_above(low, draws * self.p)
        here = (_poisson_above(low - 1, draws * self.p) if low else 1.0) - above
        room, many = h - float(self.keys @ above), float(self.keys @ here)
        chosen = above + here * (min(room / many, 1.0) if many > 0 else 0.0)
        hit = float(self.p @ (self.keys * chosen))
        left = self.keys * (1 - chosen)
        which = left > 1e-9
        if not which.any() or hit > 1 - 1e-9:
            return min(hit, 1.0), Frequencies(np.array([0.0]), np.array([1.0]), self.name)
        return hit, Frequencies(self.p[which] / (1 - hit), left[which], self.name)

    def partitions(self, count: float) -> Frequencies:
        """Return the probabilities of `count` disk partitions, over which keys are spread by their
        hash.

        The most frequent values are assigned to partitions at random, with a fixed seed; the others
        are spread evenly. If there are very many partitions, each value more frequent than an
        average partition gets a partition for itself.
        """
        count = max(count, 1.0)
        if count <= _DRAWN:
            return self._drawn_partitions(count)
        heads = min(self.above((1.0 - self.absent) / count)[0], count / 2)
        rest = (1.0 - self.absent - self.top(heads)) / count
        here = np.minimum(self.keys, np.maximum(heads - self._ends[:-1], 0.0))
        which = here > 0
        return Frequencies(
            np.append(self.p[which] + rest, rest),
            np.append(here[which], max(count - heads, 0.0)),
            self.name,
        )

    def _drawn_partitions(self, count: float) -> Frequencies:
        heads = int(min(4 * count, self.count))
        whole = np.floor(
            np.minimum(self.keys, np.maximum(heads - self._ends[:-1], 0.0)) + 1e-9
        ).astype(np.int64)
        p = np.repeat(self.p, whole)
        rest = (1.0 - self.absent - float(p.sum())) / count
        mass = np.bincount(
            (_chance()[: len(p)] * count).astype(np.int64), p, minlength=math.ceil(count)
        ) + max(rest, 0.0)
        mass[-1] -= rest * (len(mass) - count)  # the last partition may be a partial one
        return Frequencies(np.sort(mass)[::-1], np.ones(len(mass)), self.name)


def _interpolate(x: float, xs: list[float], ys: list[float]) -> float:
    """Return ``np.interp`` of a single number, which takes ten times as long to convert it."""
    i = bisect_right(xs, x)
    if i == 0 or i == len(xs):
        return ys[max(i - 1, 0)]
    return (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1]) * (x - xs[i - 1]) + ys[i - 1]


def _good_turing(seen: np.ndarray, n_r: np.ndarray) -> np.ndarray:
    """Return the expected count of a value seen r times, float64[n]. This is Turing's estimate for
    those r where enough values support it, and r itself for larger r."""
    following = np.interp(seen + 1, seen, n_r, right=0.0)
    enough = (following >= 20) & (n_r >= 20) & np.isin(seen + 1, seen)
    first_lack = int(np.argmin(enough)) if not enough.all() else len(seen)
    out = seen.astype(np.float64)
    out[:first_lack] = (seen[:first_lack] + 1) * following[:first_lack] / n_r[:first_lack]
    return np.minimum(np.maximum.accumulate(out), np.maximum(seen, 1e-9))


def _poisson_above(count: int, means: np.ndarray) -> np.ndarray:
    """Return the probabilities that Poisson variables with these means exceed `count`,
    float64[n]."""
    spread = _SURE * math.sqrt(count + 1) + _SURE**2
    out = (means > count).astype(np.float64)
    near = np.flatnonzero((np.abs(means - count) < spread) & (means > 0))
    m, steps = means[near], np.arange(1, int(spread) + 1)[:, None]
    below = m > count
    # P(count) times a sum of products of the ratios of neighbouring probabilities
    ratios = np.where(below, np.maximum(count + 1 - steps, 0) / m, m / (count + steps))
    tail = np.exp(count * np.log(m) - m - math.lgamma(count + 1)) * (
        np.cumprod(ratios, axis=0).sum(axis=0) + below
    )
    out[near] = np.where(below, 1 - tail, tail)
    return out


def _tail(p: float, seen: float, unseen: float, missing: float) -> tuple[np.ndarray, np.ndarray]:
    """Return groups of the unseen values, (p, keys), with probabilities p (seen / rank)^s. s is
    chosen so that the probabilities add up to `missing`. If the unseen values would be no rarer
    than the values seen once, they form one group."""
    ranks = np.geomspace(
        seen, seen + unseen, max(int(math.log((seen + unseen) / seen) / math.log(_RATIO)), 1) + 1
    )

    def mass(s: float) -> np.ndarray:
        rate = 1 - s  # if the rate is 0, the limit is ln
        logs = np.log(ranks / seen)
        return p * seen * np.diff(np.expm1(rate * logs) / rate if rate else logs)

    if len(ranks) == 2 or p * unseen <= missing:
        return np.array([missing / unseen]), np.array([unseen])
    s, steep = 0.0, 20.0
    for step in steep * 0.5 ** np.arange(1, _HALVINGS):
        if mass(s + step).sum() > missing:
            s += step
    return mass(s) * missing / mass(s).sum() / np.diff(ranks), np.diff(ranks)


@cache
def _chance() -> np.ndarray:
    """Return random numbers between 0 and 1 that are always the same."""
    return np.random.default_rng(0).random(4 * _DRAWN + 4)  # a slow import
