"""The restriction of one topic partition: whole polls are claimed, only checkpoints split, an end is an end."""

import pytest
from apache_beam.io.restriction_trackers import OffsetRange

from freshet_graph.stream.pipeline import UNENDING, PartitionTracker


def tracker(start: int = 100) -> PartitionTracker:
    return PartitionTracker(OffsetRange(start, UNENDING))


def test_a_checkpoint_leaves_what_was_not_claimed() -> None:
    #  [100 ── claimed ── 140)[140 ── the next process() call ── …
    one = tracker()
    assert one.try_claim(120)
    assert one.try_claim(140)
    assert one.try_split(0) == (OffsetRange(100, 140), OffsetRange(140, UNENDING))
    assert one.check_done()
    assert one.try_split(0) is None


def test_an_empty_poll_can_be_claimed_and_then_everything_is_left() -> None:
    one = tracker()
    assert one.try_claim(100)
    assert one.try_split(0) == (OffsetRange(100, 100), OffsetRange(100, UNENDING))
    assert one.check_done()


def test_polls_are_never_shared_out() -> None:
    one = tracker()
    assert one.try_split(0.5) is None
    assert one.current_restriction() == OffsetRange(100, UNENDING)


def test_after_a_checkpoint_nothing_more_can_be_claimed() -> None:
    one = tracker()
    one.try_claim(120)
    one.try_split(0)
    assert not one.try_claim(130)


def test_the_end_is_where_the_last_claim_was() -> None:
    one = tracker()
    one.try_claim(120)
    assert not one.try_claim(None)
    assert one.check_done()
    assert one.try_split(0) is None


def test_unclaimed_offsets_are_a_defect_of_the_source() -> None:
    one = tracker()
    one.try_claim(120)
    with pytest.raises(ValueError, match="offsets from 120"):
        one.check_done()
    with pytest.raises(ValueError, match="offset 110 is before 120"):
        one.try_claim(110)


def test_topics_are_unbounded() -> None:
    assert not tracker().is_bounded()
