"""GraphMixer and DyGFormer against the equations of their papers, one query at a time, and what they can never see."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from happenings import FEATURES, NODES, happenings
from rank_equality import DRAWING
from thread_ranks import side_by_side
from trainer_sessions import examples_of, learn, session_on
from trainer_streams import make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.data.neighbours import signatures
from freshet_graph.trainer.models.event_model import EventModel
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.events.event_stream import EventStream, logits

Vector = np.ndarray
SMALL = {
    "graphmixer": {"hidden": 6, "time_width": 5, "neighbours": 3, "around": 7, "gap_s": 20.0, "signature": 4},
    "dygformer": {"hidden": 5, "channels": 4, "time_width": 3, "neighbours": 6, "patch": 3, "dropout": 0.0},
}
"""Rows of three and seven events, and of two and a third patch: both have missing ends."""


def small(name: str, **params: object) -> EventModel:
    torch.manual_seed(1)
    model = create_model(name, ModelShape(0, 1, 5, FEATURES), {**SMALL[name], **params})
    assert isinstance(model, EventModel)
    return model.double().eval()


def filled() -> EventFeed:
    feed = EventFeed(FEATURES)
    feed.append(happenings(60), NODES)
    return feed


class Papers:
    """The equations in NumPy, from a feed and the weights of a model."""

    def __init__(self, model: EventModel, feed: EventFeed) -> None:
        self.w = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        self.feed = feed

    def past(self, node: int, before: int, most: int) -> list[tuple[int, int, Vector]]:
        """Other ends, times and inputs of a node's latest events, newest first."""
        found = []
        for i in range(len(self.feed)):
            src, dst = int(self.feed.src[i]), int(self.feed.dst[i])
            inputs = np.concatenate([[0.0], self.feed.carried[i].astype(np.float64)])
            if self.feed.time_us[i] < before:
                found += [
                    (other, int(self.feed.time_us[i]), inputs)
                    for end, other in ((src, dst), (dst, src))
                    if end == node
                ]
        return found[::-1][:most]

    def linear(self, name: str, x: Vector) -> Vector:
        product = x @ self.w[f"{name}.weight"].T
        return product + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else product

    def norm(self, name: str, x: Vector) -> Vector:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def classified(self, u: Vector, v: Vector) -> float:
        hidden = np.maximum(self.linear("decoder.perceptron.0", np.concatenate([u, v])), 0)
        return float(self.linear("decoder.perceptron.2", hidden)[0])


def gelu(x: Vector) -> Vector:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


class PlainMixer(Papers):
    def embed(self, node: int, t: int, before: int) -> Vector:
        tokens = np.zeros((3, 5 + 4 + FEATURES))
        frequency = np.float32(math.sqrt(5) ** (-np.arange(5) / math.sqrt(5))).astype(
            np.float64
        )  # α = β = √d
        for place, (_, then, inputs) in enumerate(self.past(node, before, 3)):
            tokens[place] = [*np.cos((t - then) / 1e6 * frequency), *inputs]
        h = self.linear("project", tokens)
        mixed = self.linear(
            "mixer.token_out", gelu(self.linear("mixer.token_in", self.norm("mixer.token_norm", h).T))
        )
        h = h + mixed.T
        h = h + self.linear(
            "mixer.channel_out", gelu(self.linear("mixer.channel_in", self.norm("mixer.channel_norm", h)))
        )
        near = [other for other, then, _ in self.past(node, before, 7) if t - then <= 20_000_000]
        own = signatures(np.array([node]), 4, 5)[0].astype(np.float64)
        around = signatures(np.array(near), 4, 5).mean(axis=0) if near else 0
        return np.concatenate([h.mean(axis=0), own + around])

    def logit(self, u: int, v: int, t: int, before: int) -> float:
        return self.classified(self.embed(u, t, before), self.embed(v, t, before))


class PlainFormer(Papers):
    def sequence(self, node: int, t: int, before: int) -> list[tuple[int, int, Vector]]:
        return [(node, t, np.zeros(4 + FEATURES)), *self.past(node, before, 6)]

    def tokens(self, own: list, other: list, t: int) -> Vector:
        """⌈events / 3⌉ patches, each filled up with zeros; how often an end is in both sequences goes through one f."""

        def f(count: int) -> Vector:
            return self.linear(
                "occurrence.2", np.maximum(self.linear("occurrence.0", np.array([float(count)])), 0)
            )

        parts: tuple[list, list, list] = [], [], []
        for end, then, inputs in own:
            parts[0].append(inputs)
            parts[1].append(np.cos((t - then) / 1e6 * self.w["time.frequency"] + self.w["time.phase"]))
            parts[2].append(sum(f(sum(each == end for each, _, _ in among)) for among in (own, other)))
        aligned = []
        for part, name in zip(parts, ("of_edges", "of_times", "of_occurrence"), strict=True):
            rows = [*part, *[np.zeros(len(part[0]))] * (-len(part) % 3)]
            patches = np.stack([np.concatenate(rows[at : at + 3]) for at in range(0, len(rows), 3)])
            aligned.append(self.linear(name, patches))
        return np.concatenate(aligned, axis=1)

    def transformed(self, z: Vector) -> Vector:
        for at in range(2):
            name = f"transformer.{at}"
            query, key, value = np.split(
                self.linear(f"{name}.query_key_value", self.norm(f"{name}.first", z)), 3, axis=1
            )
            heads = []
            for here in (slice(0, 6), slice(6, 12)):
                scores = np.exp(query[:, here] @ key[:, here].T / math.sqrt(6))
                heads.append(scores / scores.sum(axis=1, keepdims=True) @ value[:, here])
            z = z + self.linear(f"{name}.attended", np.concatenate(heads, axis=1))
            z = z + self.linear(
                f"{name}.narrow", gelu(self.linear(f"{name}.wide", self.norm(f"{name}.second", z)))
            )
        return z

    def embed(self, node: int, t: int, before: int) -> Vector:
        own = self.sequence(node, t, before)
        return self.linear("output", self.transformed(self.tokens(own, [], t)).mean(axis=0))

    def logit(self, u: int, v: int, t: int, before: int) -> float:
        ours, theirs = self.sequence(u, t, before), self.sequence(v, t, before)
        one, other = self.tokens(ours, theirs, t), self.tokens(theirs, ours, t)
        z = self.transformed(np.concatenate([one, other]))
        ends = [self.linear("output", part.mean(axis=0)) for part in (z[: len(one)], z[len(one) :])]
        return self.classified(*ends)


PLAIN: dict[str, Callable[[EventModel, EventFeed], PlainMixer | PlainFormer]] = {
    "graphmixer": PlainMixer, "dygformer": PlainFormer,
}  # fmt: skip


def queries(feed: EventFeed, numbers: np.ndarray, before_us: int | None = None) -> Queries:
    """The events of a feed, and for each the same source with the next node."""
    event = np.repeat(numbers, 2)
    src, dst = (column[event].astype(np.int64) for column in (feed.src, feed.dst))
    dst[1::2] = (dst[1::2] + 1) % (NODES + 1)  # one node that nothing was ever heard of
    time_us = feed.time_us[event]
    before = time_us if before_us is None else np.full(len(event), before_us)
    return Queries(event, src, dst, np.zeros((len(event), len(Encounter)), np.float32), time_us, before)


@pytest.mark.parametrize("by_event", [False, True], ids=["batch", "event"])
@pytest.mark.parametrize("name", SMALL)
def test_it_is_what_its_paper_says(name: str, by_event: bool) -> None:
    model, feed = small(name), filled()
    plain = PLAIN[name](model, feed)
    stream = EventStream(model, feed, torch.device("cpu"), by_event=by_event)
    batch = np.arange(30, 45)
    before_us = int(feed.time_us[batch[0]])
    stream.deliver_before(before_us)
    asked = queries(feed, batch, before_us)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            ours = logits(stream, asked, slice(0, len(asked)), before_us).detach().numpy()
        until = asked.time_us if by_event else asked.before_us
        expected = [
            plain.logit(*(int(x) for x in each))
            for each in zip(asked.src, asked.dst, asked.time_us, until, strict=True)
        ]
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)
    assert np.ptp(ours) > 1e-3
    nodes, after = np.arange(NODES + 1), before_us + 3_000_000
    alone = stream.embed_all(nodes, np.full(len(nodes), after), before_us).numpy()
    until_us = after if by_event else before_us
    np.testing.assert_allclose(
        alone, [plain.embed(int(node), after, until_us) for node in nodes], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", SMALL)
def test_as_of_the_event_it_sees_its_batch_and_nothing_of_its_own_time_or_later(name: str) -> None:
    def seen(last: int, *, by_event: bool = True) -> np.ndarray:
        """Scores of events 40 … 49 on a stream whose events from ``last`` on carry other features and meet others."""
        columns = happenings(60)
        columns.dst[last:] = (columns.dst[last:] + 3) % NODES
        columns.features[last:] += 2
        feed = EventFeed(FEATURES)
        feed.append(columns, NODES)
        stream = EventStream(small(name), feed, torch.device("cpu"), by_event=by_event)
        before_us = int(feed.time_us[40])
        stream.deliver_before(before_us)
        with torch.no_grad():
            asked = queries(truth, np.arange(40, 50), before_us)
            return logits(stream, asked, slice(0, len(asked)), before_us).numpy()

    truth = filled()
    plain = seen(60)
    for last in (44, 47):
        same = np.repeat(truth.time_us[40:50] <= truth.time_us[last], 2)
        changed = seen(last) != plain
        assert not changed[same].any()
        assert changed[~same].any()
        np.testing.assert_array_equal(seen(last, by_event=False), seen(60, by_event=False))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("graphmixer", {"hidden": 0}, "hidden: must be at least 1, found 0"),
        ("graphmixer", {"around": 2000}, "around: must be at most 1000, found 2000"),
        ("graphmixer", {"signature": 65}, "signature: must be at most 64, found 65"),
        ("graphmixer", {"gap_s": 0.0}, "gap_s: must be above 0, found 0.0"),
        ("dygformer", {"heads": 7}, "heads must divide 3 · channels = 12, found 7"),
        ("dygformer", {"time": "linear"}, "time: must be 'cosine' or 'log', found 'linear'"),
        ("dygformer", {"dropout": 1.0}, "dropout: must be below 1, found 1.0"),
        ("dygformer", {"patch": 0}, "patch: must be at least 1, found 0"),
    ],
)
def test_it_says_what_it_cannot_be(name: str, params: dict, message: str) -> None:
    with pytest.raises(Failure, match=message):
        create_model(name, ModelShape(0, 1), {**SMALL[name], **params})


@pytest.mark.parametrize("name", SMALL)
def test_ranks_of_pac_look_up_all_neighbours_and_one_goes_on_from_two(name: str, tmp_path: Path) -> None:
    """Whatever the rank, an answer is that of one rank with the same weights, cut events included."""
    lane = make_lane(tmp_path, events=meetings(snapshots=4), algorithm="random", parts=2)

    def learned(ranks: Ranks) -> tuple[Session, dict, list[np.ndarray]]:
        with DRAWING:
            session = session_on(lane, "pac", name, ranks, model_params={**SMALL[name]})
        for sequence in range(3):
            report = learn(session, examples_of(session, sequence))
        assert report.events > 0 < report.discarded
        state = copy.deepcopy(session.state())
        examples = examples_of(session, 3)
        return session, state, session.strategy.answer(session.model, [examples.positive])

    (one, state, ours), (other, _, theirs) = side_by_side(2, learned)
    for weight, same in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(weight, same)
    alone = session_on(lane, "pac", name, model_params={**SMALL[name]})
    alone.restore(state)
    alone.advance(lane.manifests[3])
    examples = alone.task.examples(alone.view, alone.strategy)
    answers = alone.strategy.answer(alone.model, [examples.positive])[0]
    assert len(answers) == len(ours[0]) + len(theirs[0])
    np.testing.assert_allclose(sorted(answers), sorted([*ours[0], *theirs[0]]), rtol=0, atol=1e-6)
