"""What a query may know: exactly the events of strictly earlier time that stand before its batch."""

from itertools import pairwise

import numpy as np
import pytest

from freshet_graph.trainer.data import history as module
from freshet_graph.trainer.data.history import Encounter, History, Inserts, Moment, SeenPairs, find, pair_key


def stream(seed: int, events: int, nodes: int, times: int) -> Inserts:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, times, events)) * 1_000_000
    return Inserts(
        rng.integers(0, nodes, events), rng.integers(0, nodes, events), t, np.zeros(events, np.bool_)
    )


def known_before(past: list[tuple[int, int, int]], u: int, v: int, now: int) -> list[float]:
    """The plain-Python twin: one query against a list of (src, dst, t)."""

    def last(hits: list[int]) -> float:
        return (now - max(hits)) / 1e6 if hits else np.inf

    groups = [
        [t for s, d, t in past if (s, d) == (u, v)],
        [t for s, d, t in past if (s, d) == (v, u)],
        [t for s, _, t in past if s == u],
        [t for _, d, t in past if d == u],
        [t for s, _, t in past if s == v],
        [t for _, d, t in past if d == v],
    ]
    return [*(last(group) for group in groups), *(float(len(group)) for group in groups)]


def first_of_batch(number: int, snapshot: int, across: bool, borders: list[int], batch: int) -> int:
    """The plain-Python twin: number of the first event of an event's batch, all counted over the whole stream."""
    begins = [0, *borders] if across else [0, *borders, snapshot]
    begin = max(each for each in begins if each <= number)
    return begin + (number - begin) // batch * batch


@pytest.mark.parametrize(
    ("moment", "across"),
    [("snapshot", False), ("batch", False), ("event", False), ("batch", True), ("event", True)],
)
@pytest.mark.parametrize("further", [[], [50, 101]])
@pytest.mark.parametrize("times", [4, 30, 1000])
def test_encounters_equal_a_plain_scan_of_what_was_before(
    times: int, across: bool, further: list[int], moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 7)
    whole = stream(times, 120, 9, times)
    borders = [0, 31, 31, 45, 120]
    if not across:  # snapshots part by time
        borders = [0, *(int(np.searchsorted(whole.visible_us, whole.visible_us[i])) for i in (31, 60)), 120]
    every = list(zip(whole.src.tolist(), whole.dst.tolist(), whole.visible_us.tolist(), strict=True))
    rng = np.random.default_rng(1)
    history = History(moment, across=across, borders=further)
    for begin, end in pairwise(borders):
        part = Inserts(
            *(column[begin:end] for column in (whole.src, whole.dst, whole.visible_us, whole.late))
        )
        rows = np.sort(rng.integers(0, max(len(part), 1), 2 * len(part)))
        u, v = rng.integers(0, 11, len(rows)), rng.integers(0, 11, len(rows))
        firsts = [first_of_batch(number, begin, across, further, 7) for number in range(begin, end)]
        assert history.visible_before(part).tolist() == whole.visible_us[firsts].tolist()
        got = history.replay(part, 9, rows, u, v)
        for row, *pair, answer in zip(rows.tolist(), u.tolist(), v.tolist(), got, strict=True):
            until = {"snapshot": begin, "batch": firsts[row], "event": begin + row}[moment]
            past = [event for event in every[:until] if event[2] < every[until][2]]
            expected = known_before(past, *pair, every[begin + row][2])
            np.testing.assert_allclose(answer, np.array(expected, np.float32), rtol=1e-6)


@pytest.mark.parametrize("moment", ["batch", "event"])
def test_events_of_equal_time_never_see_each_other_across_a_batch_border(moment: Moment) -> None:
    events = 450
    same = Inserts(
        np.zeros(events, np.int64), np.ones(events, np.int64), np.full(events, 5), np.zeros(events, np.bool_)
    )
    answers = History(moment).replay(same, 2, np.arange(events), same.src, same.dst)
    assert (answers[:, Encounter.PAIR_COUNT] == 0).all()


def test_a_late_event_has_age_zero_at_least() -> None:
    history = History()
    history.remember(Inserts(*(np.array([v]) for v in (0, 1, 9_000_000)), np.array([False])), 2)
    late = Inserts(*(np.array([v]) for v in (0, 1, 9_000_000)), np.array([True]))
    answer = history.replay(late, 2, np.array([0]), np.array([0]), np.array([1]))
    assert answer[0, Encounter.PAIR_AGE] == 0


def test_restored_history_goes_on_as_if_never_interrupted() -> None:
    first, second = stream(0, 300, 12, 900), stream(1, 300, 12, 900)
    straight, resumed = History(), History()
    straight.remember(first, 12)
    resumed.restore(straight.state())
    rows = np.arange(300)
    answers = [h.replay(second, 12, rows, second.src, second.dst) for h in (straight, resumed)]
    np.testing.assert_array_equal(*answers)
    for name, column in straight.state().items():
        np.testing.assert_array_equal(column, resumed.state()[name])


def test_destinations_stand_in_order_of_first_appearance() -> None:
    history = History()
    columns = np.array([0, 0, 0, 0]), np.array([3, 1, 3, 2]), np.arange(4), np.zeros(4, np.bool_)
    history.remember(Inserts(*columns), 4)
    assert history.destinations.tolist() == [3, 1, 2]


def test_the_pair_table_finds_every_pair_after_growing_many_times() -> None:
    seen = SeenPairs()
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 1 << 20, (5000, 2)), axis=0)
    for src, dst in pairs.tolist():
        seen.reserve(1)
        key = pair_key(src, dst)
        at = find(seen.table.slots, seen.table.shift, seen.keys, key)
        assert at < 0
        seen.table.slots[-1 - at] = seen.size
        seen.keys[seen.size] = key
        seen.size += 1
    assert len(seen.table.slots) >= 2 * seen.size
    keys = (pairs[:, 0] << 32) | pairs[:, 1]
    np.testing.assert_array_equal(seen.table.find(seen.keys, keys), np.arange(len(keys)))
    assert seen.table.find(seen.keys, np.array([pair_key(1 << 21, 0)])).tolist() == [-1]
    assert [column.tolist() for column in seen.pairs(np.array([3, 7]))] == pairs[[3, 7]].T.tolist()
