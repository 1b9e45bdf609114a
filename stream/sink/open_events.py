"""Committed events of open snapshots, and the limit of open events."""

from dataclasses import dataclass

import pyarrow as pa

from schemas.events import US_PER_S
from stream.decode.rules import show_time
from stream.store.errors import StoreError


@dataclass(frozen=True, slots=True)
class OpenEvents:
    """Committed events of open snapshots, with figures that are needed often."""

    rows: pa.Table
    bytes: int
    min_tau: int | None
    max_tau: int | None

    @classmethod
    def of(cls, rows: pa.Table) -> "OpenEvents":
        """Summarise the log's open tail."""
        tau = rows["tau"].to_numpy()
        low, high = (int(tau.min()), int(tau.max())) if len(tau) else (None, None)
        return cls(rows, rows.nbytes, low, high)


class OpenLimitError(StoreError):
    """More events are open than the configuration allows; everything read is committed."""


def require_room(
    open_bytes: int, limit_bytes: int, watermark_us: int | None, interval_us: int, *, of_files: bool = False
) -> None:
    """Refuse more events if too many are open, because sealing takes memory in proportion.

    Args:
        open_bytes: Accepted events of open snapshots, committed or not.
        limit_bytes: ``snapshots.max_open_bytes``.
        watermark_us: Event time that is complete; None: some topic partition is still unknown.
        interval_us: Length of a snapshot.
        of_files: Whether a history is being read, and not Kafka.

    Raises:
        OpenLimitError: It exceeds the limit; the sentence names the cause and the keys to change.
    """
    if open_bytes <= limit_bytes:
        return
    cure = (
        "give rows in order of their times, for as much is open as a row lies before an earlier one"
        if of_files
        else "mend the producer whose topic partition holds event time (freshet_stream_watermark_timestamp_seconds)"
    )
    stands = "has not begun" if watermark_us is None else f"stands at {show_time(watermark_us)}"
    raise OpenLimitError(
        f"open snapshots hold {open_bytes:,} bytes of events, more than snapshots.max_open_bytes {limit_bytes:,}. Event "
        f"time {stands} and a snapshot is {interval_us / US_PER_S:g} s. All that was read is committed. Shorten "
        f"snapshots.interval_s (in a new store), {cure}, or raise the key, and start again"
    )
