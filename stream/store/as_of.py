"""A moment of a store: a snapshot by its τ, or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.stream.store.errors import StoreError

_SNAPSHOT = re.compile(r"-?\d{1,18}")
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
        if _SNAPSHOT.fullmatch(text):
            return cls(tau=int(text))
        if (seconds := _SECONDS.fullmatch(text)) is not None:
            return cls(t_us=round(float(seconds[1]) * US_PER_S))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise StoreError(
                f"--as-of takes a snapshot such as 18262, a time such as 2024-05-01T12:00, or seconds such as "
                f"@1714564800, found {text!r}"
            ) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return cls(t_us=round(time.timestamp() * US_PER_S))
