"""Lessons of the last snapshots with their original inputs, for strategies that learn them again."""

from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stream.arrays.kinds import Float32, Int64
from trainer.tasks.interface import Asked, Lesson, Task


@dataclass(frozen=True, slots=True)
class KeptLesson:
    """A former snapshot's lesson, as this rank learns it again.

    Attributes:
        tau: Snapshot.
        sequence: Its number in the log.
        each: Questions per item.
        asked: All of them.
        truth: float32 (items · each,).
    """

    tau: int
    sequence: int
    each: int
    asked: Asked
    truth: Float32

    def __len__(self) -> int:
        return len(self.truth) // self.each

    def part(self, chosen: Int64) -> tuple[Asked, Float32]:
        """See ``Lesson.part``."""
        rows = np.concatenate([chosen + len(self) * turn for turn in range(self.each)])
        asked = type(self.asked)(**{name: column[rows] for name, column in _columns(self.asked).items()})
        return asked, self.truth[rows]


class LessonBook:
    """Keeps the lessons of the last snapshots.

    Args:
        task: Makes the lessons.
        most: How many are learned at once, the newest included.
    """

    def __init__(self, task: Task, most: int) -> None:
        self._task = task
        self._former: deque[KeptLesson] = deque(maxlen=max(most - 1, 0))
        self._newest: Lesson | None = None

    def open(self, lesson: Lesson) -> None:
        """Take in the newest snapshot's lesson; the one before becomes a former one."""
        self._former.extend(self._newest_kept())
        self._newest = lesson

    def with_newest(self, lesson: Lesson) -> list[Any]:
        """The former lessons, oldest first, and the newest or a sample of it."""
        return [*self._former, lesson]

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            str(place): {
                "tau": each.tau,
                "sequence": each.sequence,
                "each": each.each,
                "truth": each.truth,
                "asked": _columns(each.asked),
            }
            for place, each in enumerate([*self._former, *self._newest_kept()])
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._newest = None
        for place in range(len(state)):
            row = state[str(place)]
            asked = self._task.asked(**{name: np.asarray(column) for name, column in row["asked"].items()})
            self._former.append(
                KeptLesson(
                    int(row["tau"]), int(row["sequence"]), int(row["each"]), asked, np.asarray(row["truth"])
                )
            )

    def _newest_kept(self) -> list[KeptLesson]:
        """The newest lesson as it is learned again; none if no former lesson is wanted."""
        return [] if self._newest is None or not self._former.maxlen else [kept(self._newest)]


def kept(lesson: Lesson) -> KeptLesson:
    """A lesson as it is learned again."""
    return KeptLesson(lesson.tau, lesson.sequence, lesson.each, *lesson.part(np.arange(len(lesson))))


def _columns(asked: Any) -> dict[str, Any]:
    return {field.name: getattr(asked, field.name) for field in fields(asked)}
