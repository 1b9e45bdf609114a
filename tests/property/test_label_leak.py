"""No leak of labels: whatever arrives later, and whatever it says, no earlier score and no earlier weight changes by a bit."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late_labels import (
    EVENT,
    NODES_MODEL,
    POLLS,
    SNAPSHOT_MODEL,
    Stream,
    config_of,
    drawn,
    label_times,
    later_and_flipped,
    learn,
    same,
    streams,
    with_flipped_own,
    write,
)
from log_events import SECOND

from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.evaluation.evaluate import all_inserts

MEMORY = Path("/dev/shm")
NEVER_US = SECOND << 20

OPTIONS = st.fixed_dictionaries(
    {
        "delay_s": st.sampled_from([0.0, 0.4, 1.5]),
        "negative_after_s": st.sampled_from([None, 1.6, 3.0]),
        "waiting": st.sampled_from([25, 10_000]),
        "first": st.sampled_from([8, 20]),
        "sample": st.sampled_from([16, 1000]),
    }
)
MESSAGES = {"messages": True}
KINDS = st.sampled_from(
    [
        (SNAPSHOT_MODEL, {}),
        (EVENT, {}),
        (EVENT, MESSAGES),
        ({**EVENT, "budget": {"nodes": 9, "events": 60}}, MESSAGES),
    ]
)
STARTS = st.sets(st.integers(0, 6), max_size=3)


@given(streams(), OPTIONS, KINDS, st.integers(0, POLLS), st.integers(0, 2**32 - 1), STARTS)
@settings(max_examples=8)
def test_labels_that_come_later_change_no_earlier_score_and_no_earlier_weight(
    stream: Stream,
    options: dict[str, Any],
    kind: tuple[dict[str, Any], dict[str, Any]],
    first: int,
    seed: int,
    starts: set[int],
) -> None:
    """One run follows a stream as it grows. The other one reads a whole store, with starts in between.

    In the store all labels from a poll on came later, or never, and say the contrary, and so do the labels that events brought
    along if they are visible from then on. If that is the end of the stream, the runs are equal throughout.
    """
    more = {"task": "edge-classification", "task_params": {**options, **kind[1]}, **kind[0]}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        before, after = folder / "before", folder / "after"
        live = learn(config_of(folder, "live", "before", **more), write(before, stream), ())
        unchanged = sum(map(len, stream.labels[:first]))
        changed_us = min(label_times(before)[unchanged:], default=NEVER_US)
        own_us = own_times(before, round(options["delay_s"] * SECOND))
        flipped = {event_id for event_id, visible_us in own_us.items() if visible_us >= changed_us}
        moved = later_and_flipped(stream, first, np.random.default_rng(seed))
        for _ in write(after, with_flipped_own(moved, flipped)):
            pass
        assert min(label_times(after)[unchanged:], default=NEVER_US) >= changed_us
        other = learn(config_of(folder, "other", "after", **more), None, starts)

        assert other.taus == live.taus
        for place, tau in enumerate(live.taus):
            if (tau + 1) * SECOND <= changed_us:
                assert other.lines[place] == live.lines[place]
                assert same(other.states[place], live.states[place])
        times_us = all_inserts(LogReader(str(before))).visible_us
        assert live.scores.keys() == other.scores.keys() == set(range(len(times_us)))
        for number in np.flatnonzero(times_us <= changed_us).tolist():
            assert other.scores[number] == live.scores[number]


@given(streams(of_nodes=0.9), st.integers(0, POLLS), st.integers(0, 2**32 - 1), STARTS)
@settings(max_examples=6)
def test_labels_of_nodes_that_come_later_change_no_earlier_answer_and_no_earlier_weight(
    stream: Stream, first: int, seed: int, starts: set[int]
) -> None:
    """As above. The nodes of a snapshot are asked about when the next one comes, for their labels at its end."""
    more = {"task": "node-classification", **NODES_MODEL}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        before, after = folder / "before", folder / "after"
        live = learn(config_of(folder, "live", "before", **more), write(before, stream), ())
        changed_us = min(label_times(before)[sum(map(len, stream.labels[:first])) :], default=NEVER_US)
        for _ in write(after, later_and_flipped(stream, first, np.random.default_rng(seed))):
            pass
        other = learn(config_of(folder, "other", "after", **more), None, starts)
        assert other.taus == live.taus
        asked_until_us = [0, *((tau + 1) * SECOND for tau in live.taus[:-1])]
        for place, until_us in enumerate(asked_until_us):
            if until_us <= changed_us:
                assert other.lines[place] == live.lines[place]
                assert same(other.states[place], live.states[place])


def own_times(store: Path, delay_us: int) -> dict[str, int]:
    """When the label that came with an event is visible, by the event's id."""
    log = LogReader(str(store))
    ids = [event_id for one in log.snapshots for event_id in log.events(one.tau)["event_id"].to_pylist()]
    return dict(zip(ids, (all_inserts(log).visible_us + delay_us).tolist(), strict=True))


def test_later_answers_about_nodes_do_depend_on_the_labels_of_these_streams(tmp_path: Path) -> None:
    stream = drawn(np.random.default_rng(1), 0.0, of_nodes=0.9)
    learned = []
    for name, each in (("before", stream), ("after", later_and_flipped(stream, 4, np.random.default_rng(0)))):
        for _ in write(tmp_path / name, each):
            pass
        more = {"task": "node-classification", **NODES_MODEL}
        learned.append(learn(config_of(tmp_path, f"of-{name}", name, **more), None, ()))
    one, other = learned
    assert sum(line["scored"] for line in one.lines) > 30
    assert one.lines[-1] != other.lines[-1]
    assert not same(one.states[-1]["model"], other.states[-1]["model"])


@pytest.mark.parametrize("kind", [SNAPSHOT_MODEL, EVENT], ids=["snapshot-model", "event-model"])
def test_later_scores_and_weights_do_depend_on_the_labels_of_these_streams(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    stream = drawn(np.random.default_rng(1), 0.4)
    more = {"task": "edge-classification", "task_params": {"first": 8}, **kind}
    streams_by_name = {"before": stream, "after": later_and_flipped(stream, 4, np.random.default_rng(0))}
    for name, each in streams_by_name.items():
        for _ in write(tmp_path / name, each):
            pass
    one, other = (
        learn(config_of(tmp_path, f"of-{name}", name, **more), None, ()) for name in streams_by_name
    )
    assert one.scores[100] != other.scores[100]
    assert not same(one.states[-1], other.states[-1])
    assert any("average_precision" in line for line in one.lines)
