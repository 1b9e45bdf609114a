"""Answers over HTTP while events come and a trainer learns: python benchmarks/questions.py [--rates 100 1000] [--seconds 60].

All on this machine, as processes that their users start: a real broker, ``freshet-stream run``, ``freshet-trainer run`` and
``freshet-trainer score`` with ``serve``, a producer of live events, and ``CLIENTS`` clients that ask at fixed moments whether the
answer before has come or not. Seconds are from the moment when a question was due to its whole answer. The first ``SETTLE_S`` are
left out. Rows: no events and no questions before; then each rate of events with 200 questions per second; rankings of known
destinations; and a burst of ``BURST`` events in one commit. Beside them: the scorer's processor time per question, against the
same seconds with the same events and no question, and the load of the machine.
"""

import http.client
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import harness
import numpy as np
import psutil
from arrival import CARDS, COMMIT_S, INTERVAL_S, SCORED, SETTLE_S, TERMINALS, TOPIC, all_services, produce
from harness import require

CLIENTS, ASKED_PER_S, RANKED_PER_S, BURST = 16, 200, 10, 10_000


def ask(url: str, path: str, rate: float, seconds: float, found: Any) -> None:
    """Ask at fixed moments from several connections; puts (seconds until the answer, status) of each."""
    address, rng = urlsplit(url), np.random.default_rng(0)
    count, begun_s = int(rate * seconds), time.perf_counter() + 0.5
    ends = rng.integers(0, CARDS, count), CARDS + rng.integers(0, TERMINALS, count)
    rows: list[tuple[float, int]] = []

    def client(first: int) -> None:
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        for number in range(first, count, CLIENTS):
            due_s = begun_s + number / rate
            time.sleep(max(0.0, due_s - time.perf_counter()))
            content = {"src": int(ends[0][number]), "t": time.time()}
            if path == "/score":
                content["dst"] = int(ends[1][number])
            try:
                connection.request("POST", path, json.dumps(content))
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (http.client.HTTPException, OSError):  # an idle connection was closed
                connection.close()
                status = 0
            rows.append((time.perf_counter() - due_s, status))

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put(rows[int(SETTLE_S * rate) :])


def main() -> None:
    """Measure and print."""
    assert __doc__
    chosen = harness.options(__doc__, rates=[100, 1_000], seconds=60.0)
    with harness.scratch() as folder, harness.broker(folder / "kafka") as bootstrap:
        harness.topics(bootstrap, 1, TOPIC, SCORED)
        rows = measured(Path(folder), bootstrap, chosen.rates, chosen.seconds)
    print(f"Snapshots of {INTERVAL_S:g} s, commits every {COMMIT_S:g} s, training beside it")
    harness.table(
        "events/s | asked | answered | 429 | p50, ms | p99, ms | longest, ms | scorer, cores | ms per question | load",
        rows,
    )


def measured(folder: Path, bootstrap: str, rates: list[int], seconds: float) -> list[list[object]]:
    """A row for each case."""
    services = all_services(folder, bootstrap, serve={"port": 0})
    context, first = multiprocessing.get_context("spawn"), 0
    try:
        url = harness.base_of(services[2], folder / "scorer.log", "questions")
        scorer = psutil.Process(services[2].pid)

        def events(rate: int, lasting_s: float) -> Any:
            nonlocal first
            process = context.Process(target=produce, args=(bootstrap, rate, lasting_s, first), daemon=True)
            first += int(rate * lasting_s)
            process.start()
            return process

        def cores(lasting_s: float) -> float:
            before = scorer.cpu_times()
            time.sleep(lasting_s)
            after = scorer.cpu_times()
            return (after.user + after.system - before.user - before.system) / lasting_s

        def case(name: str, rate: int, path: str, asked_per_s: float) -> list[object]:
            quiet = events(rate, SETTLE_S + 15)
            time.sleep(SETTLE_S)
            without = cores(15)
            quiet.join()
            found = context.Queue()
            producer = events(rate, seconds + 5)
            client = context.Process(target=ask, args=(url, path, asked_per_s, seconds, found), daemon=True)
            client.start()
            time.sleep(SETTLE_S)
            with_questions = cores(seconds - SETTLE_S)
            answers = found.get(timeout=seconds + 120)
            producer.join()
            return row(name, answers, with_questions, (with_questions - without) / asked_per_s * 1e3)

        warm = events(rates[0], 30)
        warm.join()
        harness.until(lambda: _ready(url), "a checkpoint")
        rows = [case(f"{rate:,}", rate, "/score", ASKED_PER_S) for rate in rates]
        rows.append(case(f"{rates[0]:,}, /rank", rates[0], "/rank", RANKED_PER_S))
        found = context.Queue()
        client = context.Process(target=ask, args=(url, "/score", 20, seconds, found), daemon=True)
        client.start()
        time.sleep(SETTLE_S + 5)
        events(100 * BURST, BURST / (100 * BURST)).join()
        rows.append(row(f"{BURST:,} at once", found.get(timeout=seconds + 120), None, None))
    finally:
        harness.kill(*services)
    return rows


def row(
    name: str, answers: list[tuple[float, int]], cores: float | None, each_ms: float | None
) -> list[object]:
    """Of the table."""
    late, status = np.array([one for one, _ in answers]), np.array([one for _, one in answers])
    good = late[status == 200] * 1e3
    require(len(good) > 0, f"no question was answered: {np.unique(status, return_counts=True)}")
    p50, p99 = np.percentile(good, [50, 99])
    shown = ["" if one is None else f"{one:.2f}" for one in (cores, each_ms)]
    refused = int(np.count_nonzero(status == 429))
    latencies = [f"{p50:.1f}", f"{p99:.1f}", f"{good.max():.0f}"]
    return [name, len(answers), len(good), refused, *latencies, *shown, f"{os.getloadavg()[0]:.1f}"]


def _ready(url: str) -> bool:
    connection = http.client.HTTPConnection(str(urlsplit(url).hostname), urlsplit(url).port, timeout=10)
    connection.request("GET", "/readyz")
    return connection.getresponse().status == 200


if __name__ == "__main__":
    main()
