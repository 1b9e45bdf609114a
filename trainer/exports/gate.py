"""Whether an export is let out: not while the model predicts worse than Recency, or much worse than it did."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.trainer_config import Hold

HELD = "held"
"""Key of a line of the score file: why the snapshot's export was held back."""


class ExportGate:
    """Judges each snapshot's AP. One that cannot be judged, for it has no AP, has the judgement of the one before.

    A drop is one from the mean over the last ``over`` snapshots let out, each weighted by its events: before there are
    so many, one lucky snapshot of few events would hold back all that come after it.

    Args:
        hold: What holds exports back.
        lines: Those of the score file so far, so that a restart judges as if there had been none.
    """

    def __init__(self, hold: Hold, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._hold = hold
        self._gated = hold.below_recency or hold.ap_drop is not None
        self._let_out: deque[tuple[float, int]] = deque(maxlen=hold.over)
        self._reason: str | None = "no snapshot has an AP yet" if self._gated else None
        for line in lines:
            self._remember(line.get("ap"), line.get("scored", 0), line.get(HELD))

    def judge(self, ap: float | None, recency_ap: float | None, scored: int) -> str | None:
        """Why the snapshot's export is held back; None: it is let out.

        Args:
            ap: The model's, on the snapshot's events before they were learned.
            recency_ap: The floor's.
            scored: How many events these are.
        """
        if not self._gated:
            return None
        if ap is not None:
            self._remember(ap, scored, self._found(ap, recency_ap))
        return self._reason

    def _found(self, ap: float, recency_ap: float | None) -> str | None:
        if self._hold.below_recency and recency_ap is not None and ap < recency_ap:
            return f"AP {ap:.4f} is below Recency's {recency_ap:.4f}"
        if self._hold.ap_drop is not None and len(self._let_out) == self._hold.over:
            events = sum(scored for _, scored in self._let_out)
            before = sum(let_out * scored for let_out, scored in self._let_out) / events
            if ap < before - self._hold.ap_drop:
                return f"AP {ap:.4f} is more than {self._hold.ap_drop} below {before:.4f}, its mean before"
        return None

    def _remember(self, ap: float | None, scored: int, reason: str | None) -> None:
        if ap is None or not self._gated:
            return
        self._reason = reason
        if reason is None and scored:
            self._let_out.append((ap, scored))
