"""``pac``: sub-graphs learned side by side, exact predictions, shared nodes with one memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from every_strategy import session_in
from memory_reference import Event, MemoryReference
from pac_rank import EVENTS, STILL, Rank, make_store, scores_of
from thread_ranks import side_by_side
from trainer_sessions import examples_of, learn
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.temporal_sampler import SampledLayer, sample_before
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.models.tgn import Mail
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.speed.part_groups import combine
from freshet_graph.trainer.tasks.link_prediction import predict


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("pac"))


def test_one_rank_learns_bit_for_bit_what_sequential_learns(tmp_path: Path) -> None:
    events = meetings(snapshots=3, a_snapshot=60)
    found = []
    for name in ("sequential", "pac"):
        session = session_in(tmp_path / name, name, "tgn-history", events=events, algorithm="sep", parts=3)
        torch.manual_seed(5)
        for sequence in range(3):
            examples = examples_of(session, sequence)
            predictions = predict(session.strategy, session.model, session.untrained, examples, Ranks())
            reports = [learn(session, examples, epoch) for epoch in range(2)]
            found.append(
                (
                    name,
                    predictions.positive,
                    predictions.ranks,
                    *((r.loss, r.events, r.steps) for r in reports),
                )
            )
        found.append((name, *[value.numpy() for value in session.model.state_dict().values()]))
    half = len(found) // 2
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_rank_learns_from_its_latest_neighbours_and_not_from_its_part_of_the_latest(store: Path) -> None:
    def numbers(ranks: Ranks) -> list[tuple[int, int, int]]:
        """Of every row that is learned: neighbours used, and those here among the latest k and the latest 2 k."""
        rank = Rank(store, ranks, "tgn", "pac", STILL, {"model_params": {"neighbours": 3}})
        stream, counts = rank.strategy.memories.trained.stream, list[tuple[int, int, int]]()
        layers = stream._sampler.layers

        def counted(nodes: np.ndarray, before_us: int, *rest: int) -> list[SampledLayer]:
            (layer,) = layers(nodes, before_us, *rest)
            if stream._near is not None:
                here = []
                for k in (3, 6):
                    latest = sample_before(stream._feed.graph, nodes, before_us, k)
                    here.append(((latest.event >= 0) & stream._near[latest.node]).sum(axis=1))
                assert stream._near[layer.sampled.node[layer.sampled.event >= 0]].all()
                counts.extend(zip(layer.sampled.count.tolist(), *(one.tolist() for one in here), strict=True))
            return [layer]

        stream._sampler.layers = counted
        for sequence in range(3):
            learn(rank.session, rank.examples(sequence), 0)
        return counts

    rows = [row for counts in side_by_side(2, numbers) for row in counts]
    assert all(used == min(3, among_more) for used, _, among_more in rows)
    assert any(used > among_latest for used, among_latest, _ in rows)


@pytest.mark.parametrize("name", ["jodie", "dyrep", "tgn", "tige", "tgn-history"])
def test_predictions_of_several_ranks_are_those_of_one(name: str, store: Path) -> None:
    def predicted(ranks: Ranks) -> list[tuple[np.ndarray, ...]]:
        rank = Rank(
            store,
            ranks,
            name,
            "pac" if ranks.size > 1 else "sequential",
            STILL,
            **({"shuffle_every": 2} if ranks.size > 1 else {}),
        )
        found = []
        for sequence in range(3):
            examples = rank.examples(sequence)
            predictions = predict(rank.strategy, rank.model, rank.model, examples, ranks)
            if predictions is not None:
                found.append((predictions.positive, predictions.negative, predictions.ranks))
        after = rank.strategy.embeddings(np.flatnonzero(rank.strategy.owned(40)))
        assert torch.isfinite(after).all()
        return found

    alone = predicted(Ranks())
    together = side_by_side(3, predicted)[0]
    for ours, theirs in zip(together, alone, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_what_happens_later_changes_nothing_that_was_predicted_or_learned_before(tmp_path: Path) -> None:
    times = EVENTS["t"].to_numpy()
    other = meetings(seed=1, snapshots=4, a_snapshot=100, nodes=40, features=False)
    changed = pa.concat_tables(
        [EVENTS.filter(times < 3 * SECOND), other.filter(other["t"].to_numpy() >= 3 * SECOND)]
    )
    found = []
    for name, events in (("as it was", EVENTS), ("changed", changed)):
        lane = Lane(name="sep", algorithm="sep", parts=5, params={"hubs": 0.2})
        build_store(events, tmp_path / name, interval_us=SECOND, lanes=[lane])

        def scores(group: Ranks, name: str = name) -> list[np.ndarray]:
            rank = Rank(
                tmp_path / name, group, "tgn", "pac", Optimisation(epochs=1, batch_size=8), shuffle_every=1
            )
            found = []
            for sequence in range(4):
                examples = rank.examples(sequence)
                predictions = predict(rank.strategy, rank.model, None, examples, group)
                learn(rank.session, examples, 0)
                if predictions is not None:
                    found.append(predictions.positive[:, 0])
            return found

        found.append(side_by_side(2, scores)[0])
    for sequence in range(3):
        np.testing.assert_array_equal(found[0][sequence], found[1][sequence])
    assert len(found[0][3]) != len(found[1][3]) or (found[0][3] != found[1][3]).any()


def test_snapshots_that_are_left_out_are_remembered_across_ranks(store: Path) -> None:
    def predicted(ranks: Ranks) -> np.ndarray:
        rank = Rank(store, ranks, "tgn-history", "pac", STILL)
        learn(rank.session, rank.examples(0), 0)
        rank.leave_out(1)
        rank.leave_out(2)
        return scores_of(rank, 3)

    def alone(ranks: Ranks) -> np.ndarray:
        rank = Rank(store, ranks, "tgn-history", "pac", STILL)
        rank.examples(0)  # neither learned nor predicted: nothing is discarded
        rank.leave_out(1)
        rank.leave_out(2)
        return scores_of(rank, 3)

    assert np.isfinite(side_by_side(2, predicted)[0]).all()
    np.testing.assert_allclose(side_by_side(3, alone)[0], alone(Ranks()), atol=1e-6)


def reference_memory(
    store: Path, ranks: int, sequence: int
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """By plain loops: each rank's events of a snapshot, and who owns each node, from the lane alone."""
    lane = LaneReader(store, "sep")
    window = WindowView(lane, 1)
    manifest = lane.manifests[sequence]
    window.advance(manifest)
    home, shared = window.owner(manifest.tau), window.shared()
    dealt = combine(5, ranks, 0, (2 << 32) + sequence // 16)
    parts, columns = window.event_parts(manifest.tau), window.events(manifest.tau)
    owner = {node: int(dealt[home[node] if home[node] >= 0 else node % 5]) for node in range(len(home))}
    mine: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    number = -1
    for at in range(len(columns)):
        if columns.op[at] != 1:
            continue
        number += 1
        u, v = int(columns.src[at]), int(columns.dst[at])
        if shared[u] and shared[v]:
            rank = int(dealt[parts[at]]) if parts[at] >= 0 else owner[u]
        elif shared[u]:
            rank = owner[v]
        elif shared[v] or owner[u] == owner[v]:
            rank = owner[u]
        else:
            continue
        mine[rank].append(number)
    return mine, owner


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_event_is_learned_once_or_counted_as_discarded(ranks: int, store: Path) -> None:
    def learned(group: Ranks) -> list[tuple[list[int], int, int]]:
        rank = Rank(store, group, "tgn", "pac", STILL)
        found = []
        for sequence in range(3):
            examples = rank.examples(sequence)
            report = learn(rank.session, examples, 0)
            found.append((examples.learned.event.tolist(), report.events, report.discarded))
        return found

    everyones = side_by_side(ranks, learned)
    assert _between_shared(store, 3) > 10, "events between shared nodes are what could be learned twice"
    some_discarded = 0
    for sequence in range(3):
        expected, _ = reference_memory(store, ranks, sequence)
        assert [found[sequence][0] for found in everyones] == [expected[rank] for rank in range(ranks)]
        events = sum(len(numbers) for numbers in expected.values())
        inserts = LaneReader(store, "sep").log.snapshots[sequence].num_inserts
        assert {(found[sequence][1], found[sequence][2]) for found in everyones} == {
            (events, inserts - events)
        }
        some_discarded += inserts - events
    assert some_discarded > 0


def _between_shared(store: Path, snapshots: int) -> int:
    """Events of the first snapshots whose ends are both shared."""
    lane = LaneReader(store, "sep")
    window, found = WindowView(lane, 1), 0
    for manifest in lane.manifests[:snapshots]:
        window.advance(manifest)
        shared, columns = window.shared(), window.events(manifest.tau)
        inserts = columns.op == 1
        found += int((shared[columns.src[inserts]] & shared[columns.dst[inserts]]).sum())
    return found


@pytest.mark.parametrize(
    ("nodes", "algorithm", "params", "ranks"),
    [(2, "hash", {}, 3), (6, "hash", {}, 4), (12, "sep", {"hubs": 0.1}, 4)],
)
def test_no_rank_waits_for_one_that_has_less_to_do_or_nothing(
    nodes: int, algorithm: str, params: dict[str, object], ranks: int, tmp_path: Path
) -> None:
    """A collective that a rank leaves out breaks the barrier of the others."""
    lane = Lane(name="sep", algorithm=algorithm, parts=ranks, params=params)
    events = meetings(snapshots=3, a_snapshot=50, nodes=nodes, features=False)
    build_store(events, tmp_path, interval_us=SECOND, lanes=[lane])

    def learned(group: Ranks) -> list[tuple[int, int, float | None]]:
        rank = Rank(tmp_path, group, "tgn-history", "pac", Optimisation(epochs=2, batch_size=2))
        found = []
        for sequence in range(3):
            examples = rank.examples(sequence)
            predict(rank.strategy, rank.model, rank.model, examples, group)
            for epoch in range(2):
                report = learn(rank.session, examples, epoch)
                found.append((len(examples.learned), report.steps, report.loss))
        rank.strategy.embeddings(np.flatnonzero(rank.strategy.owned(nodes)))
        rank.strategy.gather(rank.strategy.state())
        assert all(torch.isfinite(weights).all() for weights in rank.model.state_dict().values())
        return found

    everyones = side_by_side(ranks, learned)
    sizes = np.array([[size for size, _, _ in found] for found in everyones])
    assert (sizes.max(axis=0) - sizes.min(axis=0) > 2).any() == (nodes > 2), "others have much more to do"
    assert (sizes == 0).all(axis=1).any() == (algorithm == "hash"), "a rank has never anything to do"
    for other in everyones[1:]:
        assert [row[1:] for row in other] == [row[1:] for row in everyones[0]]


@pytest.mark.parametrize(("share", "batch"), [("divided", 4), ("each", 8)])
def test_memory_after_a_snapshot_is_that_of_each_ranks_events_alone_one_cycle_and_the_latest_copy(
    share: str, batch: int, store: Path
) -> None:
    """Against one event after the other; ranks have unequally many batches, so some begin anew meanwhile."""

    def trained(group: Ranks) -> tuple[dict, int, list]:
        rank = Rank(store, group, "tgn", "pac", STILL, batch=share)
        examples = rank.examples(0)
        report = learn(rank.session, examples, 0)
        learn(rank.session, examples, 1)  # a second pass begins where the first began
        return (
            rank.memory(),
            report.steps,
            [len(examples.learned), rank.strategy.memories.trained.stream.position],
        )

    ranks = 2
    everyones = side_by_side(ranks, trained)
    mine, _ = reference_memory(store, ranks, 0)
    counts = [len(mine[rank]) for rank in range(ranks)]
    batches = [-(-count // batch) for count in counts]
    assert len(set(batches)) > 1, "choose another stream: nobody has to wait"
    assert everyones[0][1] == max(batches)
    lane = LaneReader(store, "sep")
    window = WindowView(lane, 1)
    window.advance(lane.manifests[0])
    columns = window.events(lane.manifests[0].tau)
    inserts = np.flatnonzero(columns.op == 1)
    feed = EventFeed(0)
    feed.append(columns, 40)
    torch.manual_seed(0)
    model = create_model("tgn", ModelShape(0, 1, 0), {"memory": 6, "time_width": 5, "dropout": 0.0}).double()
    begun = [[int(columns.visible_t[inserts[n]]) for n in numbers[::batch]] for numbers in mine.values()]
    until = max(times[-1] for times in begun)
    first = min(times[0] for times in begun)
    everything = [
        Event(
            int(columns.src[i]), int(columns.dst[i]), int(columns.visible_t[i]), np.float64(feed.carried[n])
        )
        for n, i in enumerate(inserts)
    ]
    copies: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    for rank in range(ranks):
        reference = MemoryReference(model, "memory", True, "gru", "attention")
        before = [event for event in everything if event.t < first]
        for begin in range(0, len(before), batch):
            reference.deliver(before[begin : begin + batch])
        base = dict(reference.last)
        ours = [everything[n] for n in mine[rank] if everything[n].t >= first]
        at = 0
        for time in [*begun[rank], until]:
            due = [event for event in ours[at:] if event.t < time]
            for begin in range(0, len(due), batch):
                reference.deliver(due[begin : begin + batch])
            at += len(due)
        for node, last in reference.last.items():
            if base.get(node) != last or any(node in (e.u, e.v) for e in ours[:at]):
                copies.setdefault(node, []).append((last, -rank, reference.s(node)))
    memory = {node: row for found in everyones for node, row in found[0].items()}
    assert sum(len(found[0]) for found in everyones) == len(memory), "each node is on one rank"
    compared = 0
    for node, found in copies.items():
        last, _, state = max(found, key=lambda copy: copy[:2])
        mail, event_us, former_us = memory[node]
        assert event_us == last
        row = torch.from_numpy(mail)[None]
        gap = torch.tensor([(event_us - former_us) / 1e6], dtype=torch.float64)
        with torch.no_grad():
            ours = model.states(Mail(row, gap))[0].numpy()
        np.testing.assert_allclose(ours, state, atol=1e-9)
        compared += 1
    assert compared > 20
    assert sum(len(found) > 1 for found in copies.values()) > 0, "no shared node had events on both ranks"
