"""The event models against a slow reference of the papers' equations, and what they can never see."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import permutations

import numpy as np
import pytest
import torch
from happenings import FEATURES, NODES, happenings
from memory_reference import Event, MemoryReference

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.models.event_model import Hop
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.models.tgn import Identity, Mail, MemoryModel, TimeProjection
from freshet_graph.trainer.strategies.events.memory_stream import Mailbox, MemoryStream

WHAT = {  # message source, own in message, cell, embedding
    "jodie": ("memory", False, "rnn", "projection"),
    "dyrep": ("neighbourhood", False, "rnn", "identity"),
    "tgn": ("memory", True, "gru", "attention"),
    "tige": ("embedding", True, "gru", "attention"),
}
PLAIN = {"history": False, "walks": False}


def small(name: str, **params: object) -> MemoryModel:
    torch.manual_seed(1)
    params = {"memory": 6, "time_width": 5, **params}
    if name != "jodie":
        params = {"neighbours": 3, **params}
    model = create_model(name, ModelShape(0, 1, 0, FEATURES), params)
    assert isinstance(model, MemoryModel)
    return model.double().eval()


def as_events(columns: EventColumns) -> list[Event]:
    found = []
    for i in range(len(columns)):
        signed = [float(columns.weight[i]), float(columns.label[i])]
        carried = [np.sign(x) * np.log1p(abs(x)) for x in signed] + [float(columns.has_label[i])]
        carried = np.array([*np.float32(carried), *columns.features[i]], np.float64)
        found.append(Event(int(columns.src[i]), int(columns.dst[i]), int(columns.t[i]), carried))
    return found


def compare(model: MemoryModel, reference: MemoryReference, group: int, *, keep: bool = False) -> None:
    columns, feed = happenings(60), EventFeed(FEATURES)
    feed.append(columns, NODES)  # all of it is there; what is later must not be seen
    stream = MemoryStream(model, feed, torch.device("cpu"), group)
    with stream.unchanged(int(columns.t.max())) if keep else nullcontext():
        follow(stream, reference, columns, group)


def follow(stream: MemoryStream, reference: MemoryReference, columns: EventColumns, group: int) -> None:
    model, events = stream.model, as_events(columns)
    at, asked = 0, np.arange(NODES + 1)  # one node that nothing was ever heard of
    for t in np.unique(columns.t).tolist():
        due = [event for event in events[at:] if event.t < t]
        for begin in range(0, len(due), group):
            reference.deliver(due[begin : begin + group])
        at += len(due)
        stream.deliver_before(t)
        assert stream.position == at
        when = t + 13_000_000
        ours = stream.embed_all(asked, np.full(len(asked), when), t)
        theirs = np.stack([reference.embed(int(node), when, t) for node in asked])
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5, rtol=0)
        unknown = torch.zeros(NODES, len(Encounter))
        each = torch.arange(NODES)
        logits = model.decoder(ours, each, each + 1, unknown, None).detach().numpy()
        expected = [reference.logit(theirs[i], theirs[i + 1]) for i in range(NODES)]
        np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)
    assert at > 40


@pytest.mark.parametrize("name", WHAT)
@pytest.mark.parametrize("group", [1, 7])
def test_every_preset_is_what_its_paper_says(name: str, group: int) -> None:
    model = small(name)
    compare(model, MemoryReference(model, *WHAT[name]), group)


def test_dyrep_sends_an_end_and_the_largest_of_its_neighbours_in_whatever_order_they_come() -> None:
    """s(v) ‖ max over w in N(v) of σ(s(w)), literally, of neighbours 1, 2 and 4, and of none."""
    model, rng = small("dyrep"), np.random.default_rng(0)
    states = rng.normal(size=(5, 6))
    largest = [max(1 / (1 + np.exp(-states[w, d])) for w in (1, 2, 4)) for d in range(6)]
    expected = [[*states[3], *largest], [*states[0], *np.zeros(6)]]
    for order in permutations((1, 2, 4, 0)):  # 0 stands where no neighbour is
        place = torch.tensor([order, (1, 2, 3, 4)])
        there = torch.stack([place[0] != 0, torch.zeros(4, dtype=torch.bool)])
        none = torch.empty(0)
        hop = Hop(torch.tensor([3, 0]), place, none, none, there, none)
        sent = model.tell(torch.from_numpy(states), [hop])
        np.testing.assert_allclose(sent.numpy(), expected, rtol=1e-12)


def test_a_second_more_in_a_day_hardly_moves_a_state_of_dyrep() -> None:
    """Its Δt is smooth, as the paper's linear one; cosines of seconds would move a state at random."""
    model = small("dyrep", time_width=100)
    day = torch.tensor([86_400.0, 86_401.0], dtype=torch.float64)
    row = torch.randn(1, model.mail_width, dtype=torch.float64).repeat(2, 1)
    one, other = model.states(Mail(row, day)).detach()
    assert float((one - other).abs().max()) < 1e-4
    week = torch.tensor([0.0, 604_800.0], dtype=torch.float64)
    at_once, a_week_later = model.states(Mail(row, week)).detach()
    assert float((at_once - a_week_later).abs().max()) > 1e-2


@pytest.mark.parametrize("name", WHAT)
def test_states_that_are_kept_are_made_again_after_new_mail_and_only_then(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, made = small(name), list[int]()
    states = model.states
    monkeypatch.setattr(model, "states", lambda mail: made.append(len(mail.gap_s)) or states(mail))
    compare(model, MemoryReference(model, *WHAT[name]), 7)
    every = sum(made)
    compare(model, MemoryReference(model, *WHAT[name]), 7, keep=True)
    assert 2 * (sum(made) - every) < every


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("tgn", {"layers": 2}),
        ("tgn", {"layers": 2, "merge": "linear"}),
        ("tige", {"layers": 2, "aggregator": "mean"}),
        ("dyrep", {"aggregator": "mean", "time": "cosine"}),
        ("tgn", {"time": "log", "roles": True}),
        ("jodie", {"roles": True}),
    ],
    ids=str,
)
def test_options_are_what_they_say(name: str, params: dict) -> None:
    model = small(name, **params)
    mean, roles = params.get("aggregator") == "mean", bool(params.get("roles"))
    compare(model, MemoryReference(model, *WHAT[name], mean=mean, roles=roles), 5)


def test_tgn_history_is_tgn_with_log_time_and_roles_beside_what_its_decoder_sees() -> None:
    model = small("tgn-history", **PLAIN)
    compare(model, MemoryReference(model, *WHAT["tgn"], roles=True), 5)


@pytest.mark.parametrize("name", [*WHAT, "tgn-history"])
def test_what_comes_later_never_changes_an_embedding(name: str) -> None:
    def seen(later: Callable[[EventColumns], EventColumns]) -> np.ndarray:
        feed = EventFeed(FEATURES)
        feed.append(happenings(40), NODES)
        cut = int(feed.time_us[-1])
        feed.append(later(happenings(30, seed=1)), NODES)
        stream = MemoryStream(small(name), feed, torch.device("cpu"), 5)
        stream.deliver_before(cut)
        nodes, now = np.arange(NODES), np.full(NODES, cut)
        walks = stream.walk_features(nodes, nodes[::-1], now)
        parts = [stream.embed_all(nodes, now, cut)] + ([walks] if walks is not None else [])
        return torch.cat(parts, dim=1).numpy()

    def moved(columns: EventColumns, **changed: np.ndarray) -> EventColumns:
        shift = happenings(40).t[-1]
        fields = {name: getattr(columns, name) for name in EventColumns.__slots__}
        t = columns.t + shift
        return EventColumns(**{**fields, "t": t, "visible_t": t, **changed})

    one = seen(moved)
    two = seen(lambda columns: moved(columns, src=columns.dst, weight=columns.weight * 3))
    np.testing.assert_array_equal(one, two)


def test_going_back_to_a_mark_undoes_everything_after_it() -> None:
    feed = EventFeed(FEATURES)
    feed.append(happenings(60), NODES)
    stream = MemoryStream(small("tgn-history"), feed, torch.device("cpu"), 4)
    stream.deliver_before(int(feed.time_us[20]))
    before = {key: np.asarray(value).copy() for key, value in stream.state().items()}
    position = stream.mark()
    stream.deliver_before(int(feed.time_us[40]))
    inner = stream.mark()
    stream.deliver_before(int(feed.time_us[-1]) + 1)
    assert stream.position == 60
    stream.back(inner)
    assert stream.position == inner < 60
    stream.back(position)
    after = stream.state()
    for key, value in before.items():
        np.testing.assert_array_equal(value, np.asarray(after[key]))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"memory": 0}, "memory: must be at least 1, found 0"),
        ({"memory": 10**8}, "memory: must be at most 4096, found 100000000"),
        ({"neighbours": 100_000}, "neighbours: must be at most 1000, found 100000"),
        ({"dropout": 2}, "dropout: must be below 1, found 2"),
        ({"heads": 4, "memory": 6}, "heads must divide the memory's width 6, found 4"),
        ({"time": "linear"}, "time: must be 'cosine' or 'log', found 'linear'"),
        ({"aggregator": "max"}, "aggregator: must be 'last' or 'mean', found 'max'"),
        ({"how": "oldest"}, "how: must be 'recent' or 'uniform', found 'oldest'"),
        ({"moment": "never"}, "moment: must be 'event' or 'batch', found 'never'"),
        ({"layers": 0}, "layers: must be at least 1, found 0"),
        ({"updater": "lstm"}, "unknown key updater. Expected one of memory, time_width, time, "),
        ({"memory": "ten"}, "model_params of tgn: memory: must be a whole number, found 'ten'"),
        ({"memory": 10.5}, "memory: must be a whole number, found 10.5"),
        ({"memory": True}, "memory: must be a whole number, found True"),
        ({"dropout": "1e-1"}, "dropout: must be a number, found '1e-1'"),
        ({"history": 1}, "history: must be true or false, found 1"),
        ({"time": ["log"]}, "time: must be 'cosine' or 'log'"),
    ],
)
def test_tgn_says_what_it_cannot_be(params: dict, message: str) -> None:
    with pytest.raises(Failure, match=message):
        create_model("tgn", ModelShape(0, 1), params)


@pytest.mark.parametrize("name", [*WHAT, "tgn-history"])
def test_one_hostile_event_does_not_poison_the_memory(name: str) -> None:
    """Features and weights near the largest float32: sums of a few overflow, and NaN would be passed on for ever."""
    columns = happenings(60)
    columns.features[20] = np.float32([3e38, -3e38] * FEATURES)[:FEATURES]
    columns.weight[21] = np.float32(-3e38)
    feed = EventFeed(FEATURES)
    feed.append(columns, NODES)
    stream = MemoryStream(small(name), feed, torch.device("cpu"), 5)
    after = int(feed.time_us[-1]) + 1
    stream.deliver_before(after)
    assert bool(torch.isfinite(stream.mailbox.mail).all())
    embedded = stream.embed_all(np.arange(NODES), np.full(NODES, after), after)
    assert bool(torch.isfinite(embedded).all())


def test_a_mail_that_is_no_number_is_empty_and_a_large_one_cut() -> None:
    mailbox = Mailbox(1, 3, torch.float32, torch.device("cpu"), None)
    mailbox.reserve(2)
    mailbox.put(
        np.arange(2),
        torch.tensor([[1.0, torch.nan, torch.inf], [-torch.inf, 2.0, 3e30]]),
        np.ones(2, np.int64),
    )
    assert mailbox.mail[:2].tolist() == [[1.0, 0.0, 1e6], [-1e6, 2.0, 1e6]]
    assert mailbox.age_us(np.array([0]), np.array([0])).tolist() == [0]  # asked about a time before its event


@pytest.mark.parametrize("partial", [False, True])
def test_only_nodes_with_an_event_and_a_row_have_mail(partial: bool) -> None:
    mailbox = Mailbox(1, 3, torch.float32, torch.device("cpu"), None, partial=partial)
    mailbox.reserve(6)
    mailbox.hold(np.array([0]))
    mails = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mailbox.put(np.array([4, 1]), mails, np.array([2_000_000, 3_000_000]))
    mailbox.see(np.array([2, 4]), np.array([5_000_000, 4_500_000]))
    there, mail = mailbox.mails_of(np.array([4, 0, 2, 1, 3]))
    expected = {0: ([1.0, 2.0, 3.0], 2.5), 3: ([4.0, 5.0, 6.0], 0.0)}
    if not partial:
        expected = {0: expected[0], 2: ([0.0, 0.0, 0.0], 0.0), 3: expected[3]}
    assert there.tolist() == list(expected)
    assert list(zip(mail.row.tolist(), mail.gap_s.tolist(), strict=True)) == list(expected.values())
    assert mail.gap_s.dtype == torch.float32


@pytest.mark.parametrize("embedding", [Identity(), TimeProjection(64)], ids=["identity", "projection"])
def test_gradients_of_many_rows_of_few_nodes_are_the_same_in_every_run(embedding: torch.nn.Module) -> None:
    """Two runs of one seed must agree: what is added up by several threads is added up in one order."""
    rng = torch.Generator().manual_seed(0)
    own = torch.randint(0, 3, (20_000,), generator=rng)
    none, gap_s = torch.empty(0), torch.rand(20_000, generator=rng) * 1e6
    weights = torch.randn(20_000, 64, generator=rng)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(5):
            states = torch.ones(3, 64, requires_grad=True)
            (embedding(states, [Hop(own, none, none, none, none, gap_s)]) * weights).sum().backward()
            found.append(states.grad)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(grad, found[0]) for grad in found[1:])
