"""What a query may know: exactly the events of strictly earlier time that stand before its batch."""

from itertools import pairwise

import numpy as np
import pytest

from trainer.data import history as module
from trainer.data.history import Encounter, History, Inserts, Moment
from trainer.data.pair_table import SeenPairs, find, pair_key


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


def twin(
    snapshots: list[Inserts], queries: list[tuple], batch: int, across: bool, moment: Moment
) -> list[list[float]]:
    answers, offset = [], 0
    every = [
        (int(s), int(d), int(t))
        for snap in snapshots
        for s, d, t in zip(snap.src, snap.dst, snap.visible_us, strict=True)
    ]
    for snap, (rows, src, dst) in zip(snapshots, queries, strict=True):
        for row, u, v in zip(rows.tolist(), src.tolist(), dst.tolist(), strict=True):
            here = offset + row
            begin = here // batch * batch if across else offset + row // batch * batch
            seen_from = here if moment == "event" else begin
            past = [event for event in every[:seen_from] if event[2] < every[seen_from][2]]
            answers.append(known_before(past, u, v, every[here][2]))
        offset += len(snap)
    return answers


@pytest.mark.parametrize("moment", ["batch", "event"])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("times", [4, 30, 1000])
def test_encounters_equal_a_plain_scan_of_what_was_before(
    times: int, across: bool, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 7)
    whole = stream(times, 120, 9, times)
    borders = [0, 31, 31, 45, 120]
    if not across:  # snapshots part by time
        borders = [0, *(int(np.searchsorted(whole.visible_us, whole.visible_us[i])) for i in (31, 60)), 120]
    rng = np.random.default_rng(1)
    history, got, snapshots, queries, before = History(moment, across=across), [], [], [], []
    for begin, end in pairwise(borders):
        part = Inserts(
            *(column[begin:end] for column in (whole.src, whole.dst, whole.visible_us, whole.late))
        )
        rows = np.sort(rng.integers(0, max(len(part), 1), 2 * len(part)))
        asked = rows, rng.integers(0, 11, len(rows)), rng.integers(0, 11, len(rows))
        before += history.visible_before(part).tolist()
        got.append(history.replay(part, 9, *asked))
        snapshots.append(part)
        queries.append(asked)
    expected = np.array(twin(snapshots, queries, 7, across, moment), np.float32)
    np.testing.assert_allclose(np.concatenate(got), expected, rtol=1e-6)
    offsets = np.zeros(120, np.int64) if across else np.repeat(borders[:-1], np.diff(borders))
    at = np.arange(120) - offsets
    assert before == whole.visible_us[offsets + at // 7 * 7].tolist()


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
    table = SeenPairs()
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 1 << 20, (5000, 2)), axis=0)
    for src, dst in pairs.tolist():
        table.reserve(1)
        key = pair_key(src, dst)
        at = find(table.slots, table.shift, table.keys, key)
        assert at < 0
        table.slots[-1 - at] = table.size
        table.keys[table.size] = key
        table.size += 1
    assert len(table.slots) >= 2 * table.size
    for position, (src, dst) in enumerate(pairs.tolist()):
        assert find(table.slots, table.shift, table.keys, pair_key(src, dst)) == position
    assert [column.tolist() for column in table.pairs(np.array([3, 7]))] == pairs[[3, 7]].T.tolist()
