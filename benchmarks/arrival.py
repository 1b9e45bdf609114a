"""From a producer's send to the score in the topic: python benchmarks/arrival.py [--rates 100 1000 5000] [--seconds 60].

All on this machine, as processes that their users start: a real broker, ``freshet-stream run``, ``freshet-trainer run`` and
``freshet-trainer score``, a producer of live events at each rate in turn, and a consumer of the scored topic. Seconds are from
the producer's call of send to the consumer's receipt. The first ``SETTLE_S`` of each rate are left out. Asserted: every event has
a score, and checkpoints took over meanwhile.

Then the scorer alone: events per second over the whole log, from an empty memory, without broker and trainer.
"""

import json
import multiprocessing
import time
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
    """Receive scores until so many came; puts (number, seconds since its send) of each."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"scores-{events}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([SCORED])
    seen: dict[int, float] = {}
    while len(seen) < events:
        for message in consumer.consume(1000, 0.05):
            if message.error() is None:
                content = json.loads(message.value())
                seen.setdefault(int(content["event_id"]), time.time() - content["t"])
    found.put(seen)


def main() -> None:
    """Measure and print."""
    assert __doc__
    chosen = harness.options(__doc__, rates=[100, 1_000, 5_000], seconds=60.0)
    with harness.scratch() as folder, harness.broker(folder / "kafka") as bootstrap:
        harness.topics(bootstrap, 1, TOPIC, SCORED)
        rows = measured(Path(folder), bootstrap, chosen.rates, chosen.seconds)
        print(f"Snapshots of {INTERVAL_S:g} s, commits every {COMMIT_S:g} s, training beside it")
        harness.table("events/s | scored | p50, s | p99, s | longest, s | takeovers so far", rows)
        events, seconds = alone(Path(folder))
    print(f"The scorer alone, from an empty memory: {events:,} events at {events / seconds:,.0f} per second")


COMMIT_S = 0.1


def measured(folder: Path, bootstrap: str, rates: list[int], seconds: float) -> list[list[object]]:
    """A row for each rate."""
    stream = harness.stream_keys(
        folder / "store", bootstrap, {"name": TOPIC}, {"name": "hash", "algorithm": "hash", "parts": 1},
        snapshots={"interval_s": INTERVAL_S, "commit_every_s": COMMIT_S, "idle_timeout_s": 1.0},
    )  # fmt: skip
    trainer = {
        "store": str(folder / "store"), "lane": "hash", "checkpoint": str(folder / "checkpoints"), "metrics": {"port": 0},
        "overload": "subsample", "optimisation": {"epochs": 1},
        "scoring": {"topic": SCORED, "kafka": {"bootstrap": bootstrap}},
    }  # fmt: skip
    context, rows, first = multiprocessing.get_context("spawn"), [], 0
    services = [
        harness.service(folder, "stream", stream),
        harness.service(folder, "trainer", trainer),
        harness.service(folder, "scorer", trainer, service="score"),
    ]
    try:
        address = harness.address_of(services[2], folder / "scorer.log")
        for rate in [rates[0], *rates]:  # the first one again: before it everything was loaded
            found, events = context.Queue(), int(rate * seconds)
            consumer = context.Process(target=consume, args=(bootstrap, first + events, found), daemon=True)
            producer = context.Process(target=produce, args=(bootstrap, rate, seconds, first), daemon=True)
            consumer.start()
            producer.start()
            seen = received(found, seconds + 60, folder)
            late = np.array([seen[number] for number in range(first + int(SETTLE_S * rate), first + events)])
            takeovers = harness.scraped(address)["freshet_scorer_takeovers"]
            p50, p99 = np.percentile(late, [50, 99])
            rows.append(
                [f"{rate:,}", f"{events:,}", f"{p50:.2f}", f"{p99:.2f}", f"{late.max():.2f}", int(takeovers)]
            )
            first += events
        require(takeovers > 0, "no checkpoint took over")
    finally:
        harness.kill(*services)
    return rows[1:]


def received(found: Any, timeout_s: float, folder: Path) -> dict[int, float]:
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


if __name__ == "__main__":
    main()
