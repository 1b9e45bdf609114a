"""How labels arrive, for the score file and the metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Bool, Int64

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class LabelReport:
    """Labels of a snapshot, and the events that wait.

    Attributes:
        unjudged: Events that wait for a label.
        judged_until_s: All events visible up to this time are judged, seconds since 1970.
        expected_s: ``labels_expected_s``.
        judged: Events judged in the snapshot, by label (``0`` or ``1``) and ``given`` or ``silence``.
        delay_s: Quantiles of the seconds from an event to its label, of those given in the snapshot; empty without any.
        newest_s: When the newest given label of all became visible, seconds since 1970; None before the first.
        stability: Newest population stability index by column.
    """

    unjudged: int
    judged_until_s: float
    expected_s: float
    judged: Mapping[tuple[str, str], int]
    delay_s: Mapping[float, float]
    newest_s: float | None
    stability: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        label: Int64,
        given: Bool,
        visible_us: Int64,
        time_us: Int64,
        *,
        unjudged: int,
        judged_until_us: int,
        newest_us: int | None,
        expected_s: float,
        stability: Mapping[str, float],
    ) -> "LabelReport":
        """From the columns of the events judged in a snapshot: see ``VisibleLabels``, and when events were visible."""
        delay = (visible_us - time_us)[given] / US_PER_S
        return cls(
            unjudged,
            judged_until_us / US_PER_S,
            expected_s,
            {
                (str(kind), origin): int(((label == kind) & (given == is_given)).sum())
                for kind in (0, 1)
                for origin, is_given in (("given", True), ("silence", False))
            },
            dict(zip(QUANTILES, np.quantile(delay, QUANTILES).tolist(), strict=True)) if len(delay) else {},
            None if newest_us is None else newest_us / US_PER_S,
            stability,
        )

    def line(self) -> dict[str, Any]:
        """Keys of a line of the score file."""
        return {
            "waiting": self.unjudged,
            "judged_until": self.judged_until_s,
            **{
                origin: sum(self.judged.get((kind, origin), 0) for kind in "01")
                for origin in ("given", "silence")
            },
            "delay_s": {f"p{round(100 * share)}": seconds for share, seconds in self.delay_s.items()},
            "psi": dict(self.stability),
        }
