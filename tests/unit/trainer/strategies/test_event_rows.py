"""Rows as of any event of a log: what a model says just before it, whichever rows were asked for before."""

import numpy as np
import pytest
import torch
from every_strategy import EVENT_MODELS
from happenings import FEATURES, NODES, happenings
from trainer_sessions import examples_of, session_on, small_params
from trainer_streams import make_lane

from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.models.event_model import EventModel
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.strategies.events.memory_stream import MemoryStream
from freshet_graph.trainer.strategies.events.remembering import EventRows

EVENTS, ASKED = 60, np.arange(NODES + 1)
"""One node that nothing was ever heard of."""


def small(name: str) -> EventModel:
    torch.manual_seed(1)
    model = create_model(name, ModelShape(0, 1, 0, FEATURES), small_params(name))
    assert isinstance(model, EventModel)
    return model


def rows_of(name: str, columns: EventColumns) -> EventRows:
    feed = EventFeed(FEATURES)
    feed.append(columns, NODES)
    return EventRows(small(name), feed, torch.device("cpu"))


def told(rows: EventRows, number: int) -> np.ndarray:
    """All that is said as of an event."""
    event = rows.event(number)
    parts = [rows.nodes(ASKED, number).ravel(), event.ends.ravel(), torch.tensor([event.logit])]
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("name", EVENT_MODELS)
def test_a_row_depends_neither_on_later_events_nor_on_what_was_asked_before(name: str) -> None:
    columns, later = happenings(EVENTS), happenings(EVENTS)
    border = 40
    cut = int(np.searchsorted(columns.t, columns.t[border]))
    later.dst[cut:], later.weight[cut:] = (later.dst[cut:] + 3) % NODES, 9
    forward, other = rows_of(name, columns), rows_of(name, later)
    every = {number: told(forward, number) for number in (5, 20, 21, border)}
    assert np.ptp([each[-1] for each in every.values()]) > 1e-4
    np.testing.assert_array_equal(told(forward, 20), every[20], err_msg="back again")
    for number in (border, 20):
        np.testing.assert_array_equal(told(rows_of(name, columns), number), every[number])
    dst = int(columns.dst[border])
    np.testing.assert_array_equal(other.nodes(ASKED, border), forward.nodes(ASKED, border))
    ours, theirs = (rows.pair(int(columns.src[border]), dst, border) for rows in (forward, other))
    np.testing.assert_array_equal(ours.ends, theirs.ends)
    assert ours.logit == theirs.logit


@pytest.mark.parametrize("name", ["tgn", "tgn-history"])
def test_a_memory_has_taken_in_one_event_after_another(name: str) -> None:
    rows = rows_of(name, happenings(EVENTS))
    feed = EventFeed(FEATURES)
    feed.append(happenings(EVENTS), NODES)
    model, time_us = small(name).eval(), int(feed.time_us[50])
    stream = MemoryStream(model, feed, torch.device("cpu"), 1)
    for t in np.unique(feed.time_us[:51]).tolist():
        stream.deliver_before(t)
    expected = stream.embed_all(ASKED, np.full(len(ASKED), time_us), time_us)
    torch.testing.assert_close(rows.nodes(ASKED, 50), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["tgn-history", "graphmixer", "dygformer"])
def test_a_strategys_scores_as_of_the_event_are_those_of_rows(name: str, tmp_path: object) -> None:
    """Without a memory; a memory of batches differs, so there the rows only leave it alone."""
    session = session_on(make_lane(tmp_path), "sequential", name, history_moment="event")
    for sequence in range(2):
        examples = examples_of(session, sequence)
    asked = examples.positive
    before = session.strategy.answer(session.model, [asked])[0]
    rows = session.strategy.rows()
    first = len(session.strategy.memories.feed) - len(examples.inserts)
    found = [rows.event(first + int(place)).logit for place in asked.event]
    np.testing.assert_array_equal(session.strategy.answer(session.model, [asked])[0], before)
    if session.model.remembers:
        assert np.abs(found - before).max() > 0
    else:
        np.testing.assert_allclose(found, before, rtol=0, atol=1e-5)
