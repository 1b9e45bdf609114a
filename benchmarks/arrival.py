"""From a producer's send to the score in the topic: python benchmarks/arrival.py [--rates 100 1000 5000] [--seconds 60].

All on this machine, as processes that their users start: a real broker, ``freshet-stream run``, ``freshet-trainer run`` and
``freshet-trainer score``, a producer of live events at each rate in turn, and a consumer of the scored topic. Seconds are from
the producer's call of send to the consumer's receipt. The first ``SETTLE_S`` of each rate are left out. Asserted: every event has
a score, and checkpoints took over meanwhile.

The parts of this time (p50 / p99) are: until the record of the event's commit is made (the producer's linger, the stream's
poll, the wait for the commit and its files), until the score is made (the record's fsync, the scorer's notice, its turn, the
model), and until the receipt. What a commit takes is a mean by the stream's own series.

Then the scorer alone: events per second over the whole log, from an empty memory, without broker and trainer. Beside it a full
recomputation: for each of the newest commits the memory of a checkpoint is loaded, all events since are replayed, and the
commit is scored.
"""

import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import harness
import numpy as np
from harness import require

TOPIC, SCORED, INTERVAL_S, SETTLE_S = "arriving", "scored", 5.0, 10.0
CARDS, TERMINALS, HOME = 5_000, 10_000, 40


def produce(bootstrap: str, rate: int, seconds: float, first: int) -> None:
    """Send payments as they happen: each card mostly pays at terminals near it."""
    from confluent_kafka import Producer

    rng = np.random.default_rng(first)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    begun_s, count = time.time(), int(rate * seconds)
    cards = rng.integers(0, CARDS, count)
    near = (cards * 2 + rng.integers(0, HOME, count)) % TERMINALS
    terminals = np.where(rng.random(count) < 0.9, near, rng.integers(0, TERMINALS, count))
    for number in range(count):
        wait_s = begun_s + number / rate - time.time()
        if wait_s > 0.002:
            producer.poll(0)
            time.sleep(wait_s)
        now_s = time.time()
        ends = {"src": int(cards[number]), "dst": int(CARDS + terminals[number])}
        payment = {**ends, "t": now_s, "event_id": f"{first + number}"}
        producer.produce(TOPIC, json.dumps(payment).encode())
    producer.flush()


def consume(bootstrap: str, events: int, found: Any) -> None:
    """Receive scores until so many came; puts send, score, commit and receipt of each number."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"scores-{events}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([SCORED])
    seen: dict[int, tuple[float, float, int, float]] = {}
    while len(seen) < events:
        for message in consumer.consume(1000, 0.05):
            if message.error() is None:
                content = json.loads(message.value())
                times = (content["t"], content["scored_at"], content["commit"], time.time())
                seen.setdefault(int(content["event_id"]), times)
    found.put(seen)


def main() -> None:
    """Measure and print."""
    assert __doc__
    chosen = harness.options(__doc__, rates=[100, 1_000, 5_000], seconds=60.0)
    with harness.scratch() as folder, harness.broker(folder / "kafka") as bootstrap:
        harness.topics(bootstrap, 1, TOPIC, SCORED)
        print(f"Snapshots of {INTERVAL_S:g} s, commits every {COMMIT_S:g} s, training beside it")
        harness.table(TITLES, measured(Path(folder), bootstrap, chosen.rates, chosen.seconds))
        events, seconds = alone(Path(folder))
        print(
            f"The scorer alone, from an empty memory: {events:,} events at {events / seconds:,.0f} per second"
        )
        for since, rate in recomputed(Path(folder)):
            print(
                f"Recomputed from {since:,} events before on, commit by commit: {rate:,.1f} events per second"
            )


COMMIT_S = 0.1
TITLES = (
    "events/s | scored | p50 / p99, s | longest, s | send to commit | commit to score | score to receipt | "
    "a commit takes, s | takeovers so far"
)


def all_services(folder: Path, bootstrap: str, **of_scorer: Any) -> list[Any]:
    """A stream, a trainer and a scorer, with further keys of the scorer."""
    stream = harness.stream_keys(
        folder / "store", bootstrap, {"name": TOPIC}, {"name": "hash", "algorithm": "hash", "parts": 1},
        snapshots={"interval_s": INTERVAL_S, "commit_every_s": COMMIT_S, "idle_timeout_s": 1.0},
    )  # fmt: skip
    trainer = {
        "store": str(folder / "store"), "lane": "hash", "checkpoint": str(folder / "checkpoints"), "metrics": {"port": 0},
        "overload": "subsample", "optimisation": {"epochs": 1},
        "scoring": {"topic": SCORED, "kafka": {"bootstrap": bootstrap}},
    }  # fmt: skip
    return [
        harness.service(folder, "stream", stream),
        harness.service(folder, "trainer", trainer),
        harness.service(folder, "scorer", {**trainer, **of_scorer}, service="score"),
    ]


def measured(folder: Path, bootstrap: str, rates: list[int], seconds: float) -> Iterator[list[object]]:
    """A row for each rate."""
    context, first = multiprocessing.get_context("spawn"), 0
    services = all_services(folder, bootstrap)
    try:
        address = harness.address_of(services[2], folder / "scorer.log")
        of_stream = harness.address_of(services[0], folder / "stream.log")
        for rate in [rates[0], *rates]:  # the first one again: before it everything was loaded
            found, events = context.Queue(), int(rate * seconds)
            consumer = context.Process(target=consume, args=(bootstrap, first + events, found), daemon=True)
            producer = context.Process(target=produce, args=(bootstrap, rate, seconds, first), daemon=True)
            before = scraped_commits(of_stream) if first else (0.0, 0.0)
            consumer.start()
            producer.start()
            seen = received(found, seconds + harness.PATIENCE_S, folder)
            times = np.array([seen[number] for number in range(first + int(SETTLE_S * rate), first + events)])
            sent, scored_at, commit, receipt = times.T
            late = receipt - sent
            committed = np.array([commit_s(folder / "store", int(number)) for number in np.unique(commit)])
            committed = committed[np.unique(commit, return_inverse=True)[1]]
            took, commits = (
                after - earlier for after, earlier in zip(scraped_commits(of_stream), before, strict=True)
            )
            takeovers = harness.scraped(address)["freshet_scorer_takeovers"]
            whole, *parts = (
                " / ".join(f"{value:.2f}" for value in np.percentile(part, [50, 99]))
                for part in (late, committed - sent, scored_at - committed, receipt - scored_at)
            )
            if first:
                commit_mean_s = f"{took / max(commits, 1):.3f}"
                yield [
                    f"{rate:,}",
                    f"{events:,}",
                    whole,
                    f"{late.max():.2f}",
                    *parts,
                    commit_mean_s,
                    int(takeovers),
                ]
            first += events
        require(takeovers > 0, "no checkpoint took over")
    finally:
        harness.kill(*services)


def commit_s(store: Path, number: int) -> float:
    """When the record of a commit was made."""
    record = json.loads((store / "log" / "commits" / f"{number:016d}.json").read_text())
    return float(record["wall_time_us"]) / 1e6


def scraped_commits(address: str) -> tuple[float, float]:
    """Seconds of all phases of commits so far, and how many there were."""
    series = harness.scraped(address)
    phases = 4  # each commit is observed in each
    name = "freshet_stream_commit_seconds"
    return series.get(f"{name}_sum", 0.0), series.get(f"{name}_count", 0.0) / phases


def received(found: Any, timeout_s: float, folder: Path) -> dict[int, tuple[float, float, int, float]]:
    """What the consumer puts, or the services' logs."""
    try:
        return dict(found.get(timeout=timeout_s))
    except Empty:
        logs = [(folder / f"{name}.log").read_text()[-1500:] for name in ("stream", "trainer", "scorer")]
        require(False, "not every event has a score:\n" + "\n".join(logs))
        raise


def alone(folder: Path) -> tuple[int, float]:
    """Events of the log, and the seconds that scoring them takes."""
    from freshet_graph.schemas.trainer_config import TrainerConfig
    from freshet_graph.stream.store.lane.reader import LaneReader
    from freshet_graph.stream.store.log.arrivals import Arrivals
    from freshet_graph.trainer.arrival.memory import ArrivalMemory
    from freshet_graph.trainer.session.checkpoint import newest_checkpoint
    from freshet_graph.trainer.session.session import join_ranks

    config = TrainerConfig(store=str(folder / "store"), lane="hash", checkpoint=str(folder / "checkpoints"))
    lane = LaneReader(config.store, "hash")
    newest = newest_checkpoint(config, lane)
    require(newest is not None, "there is no checkpoint")
    memory = ArrivalMemory(config, lane, join_ranks(config), newest[1], learned=False)
    commits = [arrived.events for arrived in Arrivals(lane.log).new()]
    began = time.process_time()
    for events in commits:
        memory.take(events)
    return sum(map(len, commits)), time.process_time() - began


def recomputed(folder: Path, commits: int = 3) -> Iterator[tuple[int, float]]:
    """Events since the checkpoint, and scores per second of processor time when each commit of some replays all of them."""
    from freshet_graph.schemas.trainer_config import TrainerConfig
    from freshet_graph.stream.store.lane.reader import LaneReader
    from freshet_graph.stream.store.log.arrivals import Arrivals
    from freshet_graph.trainer.arrival.memory import ArrivalMemory
    from freshet_graph.trainer.session.checkpoint import Checkpoints, newest_checkpoint
    from freshet_graph.trainer.session.session import join_ranks

    config = TrainerConfig(store=str(folder / "store"), lane="hash", checkpoint=str(folder / "checkpoints"))
    lane = LaneReader(config.store, "hash")
    for number in Checkpoints(config.checkpoint, config.keep_checkpoints).sequences():
        newest = newest_checkpoint(config, lane, number)
        require(newest is not None, "a checkpoint is gone")
        later = [arrived.events for arrived in Arrivals(lane.log, number).new()]
        if len(later) < commits:
            continue
        scores, began = 0, time.process_time()
        for last in range(len(later) - commits, len(later)):
            memory = ArrivalMemory(config, lane, join_ranks(config), newest[1])
            for events in later[:last]:
                memory.take(events, scored=False)
            scores += len(memory.take(later[last]).rows)
        yield sum(map(len, later)), scores / (time.process_time() - began)


if __name__ == "__main__":
    main()
