"""The pipeline's functions, the same on every runner: each finds the stages of its process, and calls one of them."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import apache_beam as beam

from stream.microbatch import MicroBatch, RawBatch


class Stages(Protocol):
    """The work of the pipeline's stages, in the process that hosts them."""

    def decode(self, raw: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll, a bounded part of it at a time."""
        ...

    def write(self, batch: MicroBatch) -> list[int]:
        """Append to the log; returns the snapshots τ that were sealed."""
        ...

    def follow(self, lane: str) -> None:
        """Report a sealed snapshot to a lane."""
        ...


class Where(Protocol):
    """How a function finds the stages of its process; pickled with the function."""

    def acquire(self) -> Stages:
        """The stages, made if there are none; every call needs one ``release``."""
        ...

    def release(self) -> None:
        """Give them back."""
        ...


class StageFn(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    """Holds the process's stages from set-up to tear-down."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._stages: Stages | None = None

    def setup(self) -> None:
        """Get the stages."""
        self._stages = self._where.acquire()

    def teardown(self) -> None:
        """Give them back."""
        if self._stages is not None:
            self._stages = None
            self._where.release()

    def stages(self) -> Stages:
        """The process's stages. Not a property, because Beam reads all attributes of a function before it is set up."""
        assert self._stages is not None
        return self._stages


class DecodeFn(StageFn):
    """Polls to micro-batches."""

    def process(self, element: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll."""
        return self.stages().decode(element)


class AppendFn(StageFn):
    """Appends micro-batches to the log; emits every sealed τ for each lane."""

    def __init__(self, where: Where, lanes: tuple[str, ...]) -> None:
        super().__init__(where)
        self._lanes = lanes

    def process(self, element: MicroBatch) -> Iterator[tuple[str, int]]:
        """Append one micro-batch."""
        for tau in self.stages().write(element):
            for lane in self._lanes:
                yield lane, tau


class WakeFn(StageFn):
    """Wakes a lane, which follows the log on a thread of its own, for each sealed snapshot."""

    def process(self, element: tuple[str, int]) -> Iterator[None]:
        """Wake the lane."""
        lane, _ = element
        self.stages().follow(lane)
        return iter(())
