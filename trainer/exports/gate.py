"""Release of exports: held back while the model predicts worse than its floor, or much worse than before."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.trainer_config import Hold
from trainer.scoring.figures import Figures

HELD = "held"
"""Key of a line of the score file: why the snapshot's export was held back."""


class ExportGate:
    """Judges the task's figure of each snapshot. A snapshot without one has the judgement of the one before.

    A drop is relative to the mean over the last ``over`` released snapshots, each weighted by its events. With fewer, one
    lucky snapshot of few events would hold back all later ones.

    Args:
        hold: When exports are held back.
        picks: See ``Task.picks``.
        floor: See ``Task.floor``.
        lines: Those of the score file so far, so that a restart does not change judgements.
    """

    def __init__(
        self,
        hold: Hold,
        picks: tuple[str, int] = ("ap", 1),
        floor: str = "recency",
        lines: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._hold, self._floor = hold, floor
        self._metric, self._sign = picks
        self._gated = hold.below_recency or hold.ap_drop is not None
        self._let_out: deque[tuple[float, int]] = deque(maxlen=hold.over)
        self._reason: str | None = "no snapshot has a score yet" if self._gated else None
        for line in lines:
            self._remember(line.get(self._metric), line.get("scored", 0), line.get(HELD))

    def judge(self, figures: Figures, scored: int) -> str | None:
        """The reason to hold back a snapshot's export; None: it is released.

        Args:
            figures: Of the predictions of the snapshot, before it was learned.
            scored: Number of predicted items.
        """
        if not self._gated:
            return None
        value, floor = (figures.get((self._metric, "all", scorer)) for scorer in ("model", self._floor))
        if value is not None:
            self._remember(value, scored, self._found(value, floor))
        return self._reason

    def _found(self, value: float, floor: float | None) -> str | None:
        found = f"{self._metric} {value:.4f} is worse than"
        if self._hold.below_recency and floor is not None and self._sign * (value - floor) < 0:
            return f"{found} {floor:.4f}, that of {self._floor}"
        if self._hold.ap_drop is not None and len(self._let_out) == self._hold.over:
            items = sum(scored for _, scored in self._let_out)
            before = sum(let_out * scored for let_out, scored in self._let_out) / items
            if self._sign * (value - before) < -self._hold.ap_drop:
                return f"{found} {before:.4f}, its mean before, by more than {self._hold.ap_drop}"
        return None

    def _remember(self, value: float | None, scored: int, reason: str | None) -> None:
        if value is None or not self._gated:
            return
        self._reason = reason
        if reason is None and scored:
            self._let_out.append((value, scored))
