"""The rules of a graph's events: kind of ids, feature widths and time bounds."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from schemas.config import StreamConfig
from schemas.events import US_PER_S, IdKind
from stream.decode.times import OUT_OF_RANGE_US

EARLIEST_US = -62_135_596_800 * US_PER_S
"""Year 1: the earliest time that prints as a date."""
LATEST_US = 253_402_300_799 * US_PER_S
"""Year 9999; also keeps every sum of two times within int64."""
DEFAULT_EARLIEST_S = 631_152_000
"""1990-01-01, the default lower bound of event times."""

_FARTHEST_US = 9_200_000_000_000_000_000
"""Readers of columns clip later times to about this."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules an event must meet besides having the right types.

    Attributes:
        ids: Kind of node ids.
        node_features: Width of node feature vectors; 0: none are accepted.
        edge_features: Width of edge feature vectors; 0: none are accepted.
        min_us: Earliest accepted event time, microseconds since the epoch.
        max_us: Latest accepted event time.
        offline: The events come from a file, without a configuration; only sentences differ.
        in_seconds: Numbers are seconds, as in every file; only sentences differ.
    """

    ids: IdKind
    node_features: int = 0
    edge_features: int = 0
    min_us: int = EARLIEST_US
    max_us: int = LATEST_US
    offline: bool = False
    in_seconds: bool = False

    @classmethod
    def of(cls, config: StreamConfig, now_us: int) -> Self:
        """The rules of a configuration at wall time ``now_us``, which bounds times if ``max`` is null."""
        low, high = config.time_bounds or (DEFAULT_EARLIEST_S, None)
        latest = now_us + round(config.time_skew_s * US_PER_S) if high is None else round(high * US_PER_S)
        return cls(
            ids=config.ids,
            node_features=config.features.node,
            edge_features=config.features.edge,
            min_us=max(round(low * US_PER_S), EARLIEST_US),
            max_us=min(latest, LATEST_US),
        )


def show_time(t_us: int) -> str:
    """A time in a sentence: RFC 3339, or plain seconds if it has no date."""
    if EARLIEST_US <= t_us <= LATEST_US:
        return (_EPOCH + timedelta(microseconds=t_us)).isoformat()[: -len("+00:00")] + "Z"
    return f"{t_us / US_PER_S:.0f} s{' or further away' if abs(t_us) >= OUT_OF_RANGE_US else ''}"


def other_unit(t_us: int, rules: Rules) -> str:
    """A remark about a refused time of a topic: the date that it would be in another unit, if one is allowed."""
    for factor in (1_000, 1_000_000, 1_000_000_000):
        for scaled_us, how in ((t_us // factor, "Divided by"), (t_us * factor, "Times")):
            if max(rules.min_us, DEFAULT_EARLIEST_S * US_PER_S) <= scaled_us <= rules.max_us:
                return f". {how} {factor:,} it would be {show_time(scaled_us)}: check the topic's time_unit"
    return ". Check the topic's time_unit"


def looks_like(t_us: int) -> str:
    """A remark about a time that, read as seconds, lies after the year 9999; empty for an earlier one."""
    if t_us <= LATEST_US:
        return ""
    unit = "milliseconds" if t_us < _FARTHEST_US else "microseconds or nanoseconds"
    return f". It looks like {unit}. Files have seconds, or times as RFC 3339 writes them"


def shorten(value: object, limit: int = 60) -> str:
    """A value in a sentence, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
