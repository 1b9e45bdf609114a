"""``scores.jsonl``: one line per trained snapshot, beside the checkpoints, for people, plots and the result.

Keys of a line: ``sequence`` and ``tau`` of the snapshot; ``events`` (all of the snapshot), ``scored`` and
``trained`` inserts; ``discarded`` inserts, which no rank has both ends of; ``skipped`` snapshots just before it that
were left out for lag; ``passes`` over its events (fewer under overload); ``replayed`` events, ``nonfinite`` steps and
``drifted``, where there were; ``excluded`` (events left out of scores, by reason); ``evicted`` nodes, forgotten afterwards for
the budget; ``steps``, and ``step_events`` of each at most; ``loss`` (mean, nats); ``ap``,
``auc``, ``mrr``, ``hits_at_10`` of the model; ``<scorer>_ap`` and so on for the baselines ``random``, ``edgebank``,
``recency``, ``recency_popularity``; ``inductive_…``, ``transductive_…``, ``historical_…`` for the subsets; ``sampled`` and
``ranked`` events that some of them are made of, and ``<figure>_error``, their standard errors; ``cautions`` about figures
that few items decide;
``seconds`` by phase; ``t_max`` and ``t_min``
(event times of the newest event and of the oldest one that is not late, s); ``lag`` (snapshots behind the lane);
``wall_time`` (s since the epoch). A figure that cannot be
computed is absent. ``held`` says why a snapshot's export was held back.
"""

import json
import math
from pathlib import Path
from typing import Any

from schemas.errors import system_call
from stream.service.failure import Failure
from stream.store.places.durable import sync_file, sync_folder

NAME = "scores.jsonl"


class ScoreFile:
    """The lines of one checkpoint folder, in order of sequence, each snapshot once.

    A line is on the disk before the checkpoint of its snapshot or of a later one. So after a crash there may be lines beyond
    the checkpoint: ``cut_after`` removes them, and training writes them again.

    Args:
        folder: The checkpoint folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / NAME

    def cut_after(self, sequence: int | None) -> None:
        """Keep lines up to ``sequence`` (None: no line), drop later ones and a torn last line."""
        if not self.path.exists():
            return
        kept = [line for line in self.lines() if sequence is not None and line["sequence"] <= sequence]
        temporary = self.path.with_suffix(".tmp")
        with system_call("write", temporary):
            temporary.write_text("".join(_text(line) for line in kept), encoding="utf-8")
        sync_file(temporary)
        temporary.replace(self.path)
        sync_folder(self.path.parent)

    def append(self, line: dict[str, Any]) -> None:
        """Add a snapshot's line; it is durable after ``sync``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with system_call("write", self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_text(line))

    def sync(self) -> None:
        """Flush all lines to the disk."""
        if self.path.exists():
            sync_file(self.path)

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines.

        Raises:
            Failure: A line is damaged; the sentence names it.
        """
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1].splitlines()
        return [self._read(number, line) for number, line in enumerate(whole, 1)]

    def _read(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except ValueError:  # UnicodeDecodeError is one too
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("sequence"), int):
            raise Failure(
                f"{self.path}: line {number} is damaged. Remove the line, or move the file away to begin a new one: models "
                "don't need it, only the means over older snapshots that gates and drift look at"
            )
        return line


def weighted_mean(lines: list[dict[str, Any]], key: str, weight: str) -> float | None:
    """Mean of a key over the lines that have it, weighted by another; None where none has it."""
    pairs = [(line[key], line[weight]) for line in lines if line.get(key) is not None and line.get(weight)]
    total = sum(share for _, share in pairs)
    return math.fsum(value * share for value, share in pairs) / total if total else None


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
