"""A moment of a store: a snapshot by its τ, or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any, Self

from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.stream.store.errors import StoreError

_SNAPSHOT = re.compile(r"-?\d{1,18}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = re.compile(r"@(\d{1,13}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True)
class AsOf:
    """Either ``tau``, the last interval included, or ``t_us``, microseconds since the epoch; the other is None."""

    tau: int | None = None
    t_us: int | None = None

    def __str__(self) -> str:
        return str(self.tau) if self.t_us is None else show_time(self.t_us)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a moment given on a command line.

        Args:
            text: τ as an integer, a time in ISO 8601 (UTC if it names no zone), or @ and seconds since the epoch.

        Raises:
            StoreError: The text has none of these forms.
        """
        moment = cls._parsed(text)
        if moment is None:
            raise StoreError(
                f"--as-of takes a snapshot such as 18262, a time such as 2024-05-01T12:00, or seconds such as "
                f"@1714564800, found {text!r}"
            )
        return moment

    @classmethod
    def of(cls, moment: Any) -> Self:
        """A moment given by a program.

        Args:
            moment: τ as an integer; a datetime, such as pandas' Timestamp (UTC if it has no zone); a text as ``parse`` takes it.

        Raises:
            StoreError: It is nothing of these.
        """
        known = None
        if isinstance(moment, cls):
            known = moment
        elif isinstance(moment, str):
            known = cls._parsed(moment)
        elif isinstance(moment, datetime):
            known = cls._of_time(moment)
        elif isinstance(moment, Integral) and not isinstance(moment, bool):
            known = cls(tau=int(moment))
        if known is None:
            raise StoreError(
                "as_of takes a snapshot such as 18262, a datetime, a text such as '2024-05-01T12:00', or seconds as the text "
                f"'@1714564800', found {moment!r}"
            )
        return known

    @classmethod
    def _parsed(cls, text: str) -> Self | None:
        if _SNAPSHOT.fullmatch(text):
            return cls(tau=int(text))
        if (seconds := _SECONDS.fullmatch(text)) is not None:
            return cls(t_us=round(float(seconds[1]) * US_PER_S))
        try:
            return cls._of_time(datetime.fromisoformat(text))
        except ValueError:
            return None

    @classmethod
    def _of_time(cls, time: datetime) -> Self | None:
        """None for pandas' NaT, a datetime that equals nothing."""
        if time != time:  # noqa: PLR0124
            return None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return cls(t_us=(time - _EPOCH) // timedelta(microseconds=1))


Moment = AsOf | datetime | int | str
"""A moment as programs give it, for ``AsOf.of``."""
