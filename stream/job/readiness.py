"""Why the stream is not ready: the job makes no progress, or a topic partition holds event time back."""

from collections.abc import Callable

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.metrics import StreamMetrics

HELD_S = 60.0
"""Event time may be held back this long, or for a snapshot's interval if that is longer."""


def readiness(
    config: StreamConfig, metrics: StreamMetrics, job: Callable[[], str | None]
) -> Callable[[], str | None]:
    """The answer of ``/readyz``, also shown as a gauge.

    Args:
        config: Of the stream.
        metrics: Has what is held back, and shows the gauge.
        job: Why the job makes no progress; None: it does.
    """

    def not_ready() -> str | None:
        return job() or held_back(config, metrics)

    metrics.ready_while(lambda: not_ready() is None)
    return not_ready


def held_back(config: StreamConfig, metrics: StreamMetrics) -> str | None:
    """The sentence about a topic partition that holds event time back for too long; None if there is none."""
    holder = metrics.holder()
    rules = config.snapshots
    if holder is None or holder.age_s < max(HELD_S, rules.interval_s):
        return None
    unread = metrics.unread(holder.topic, holder.partition)
    place = f"topic {holder.topic} partition {holder.partition}"
    behind_s = holder.behind_s
    state = (
        f"its event time is {_span(behind_s)} behind the newest"
        if behind_s is not None
        else "it had no event yet"
    )
    remedy = (
        f"Find out why its {unread:,} unread messages do not arrive: look at its leader, and for an open transaction"
        if unread
        else "It has messages, but they do not advance its event time. Check its producer"
    )
    return (
        f"{place} has held event time back for {_span(holder.age_s)}, and nothing is sealed: {state}. {remedy}. A partition "
        f"with nothing unread no longer counts after snapshots.idle_timeout_s ({rules.idle_timeout_s:g} s)"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
