"""One rank of test_trainer_ranks.py: what every model and every strategy with ranks computes, written to a file by rank 0.

Usage: rank_numbers.py STORE LANE OUT; ranks by torchrun's environment variables.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rank_equality import PRECISE, STILL, begun, learned, pairs, predicted
from trainer_sessions import examples_of, learn, session_on

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks

FEW_AT_ONCE = {"inference_nodes": 7, "fetch": "owner"}


def numbers(store: str, lane_name: str, ranks: Ranks) -> dict[str, dict[str, Any]]:
    """By type, strategy and model."""
    lane = LaneReader(store, lane_name)
    found: dict[str, dict[str, Any]] = {}
    for dtype in PRECISE:
        together = [pair for pair in pairs("snapshot") if pair[0] != "hybrid"]  # its ranks learn apart
        for strategy, model in each_somewhere(together):
            options = {"strategy_params": FEW_AT_ONCE} if strategy == "vertex" else {}
            rate = 0.01 if dtype == torch.float64 else STILL
            session = begun(lane, strategy, model, ranks, dtype, rate, **options)
            found[f"{dtype} {strategy} {model}"] = learned(session)
        for strategy, model in pairs("event"):
            session, asked = begun(lane, strategy, model, ranks, dtype, STILL), {}
            for manifest in lane.manifests:
                asked |= predicted(session, manifest.sequence, examples_of(session, manifest.sequence))
            found[f"{dtype} {strategy} {model}"] = asked
    return found


def each_somewhere(found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """So many of all pairs that every model and every strategy is among them; threads compute them all."""
    chosen = []
    for at, model in enumerate(sorted({model for _, model in found})):
        training = sorted(strategy for strategy, trained in found if trained == model)
        chosen.append((training[at % len(training)], model))
    assert {strategy for strategy, _ in chosen} == {strategy for strategy, _ in found}
    return chosen


def small_batches(store: str, lane_name: str, ranks: Ranks) -> dict[str, Any]:
    """Batches of 5, of which ranks have unequally many, and one may have none."""
    session = session_on(
        LaneReader(store, lane_name), "vertex", "sage-linear", ranks, Optimisation(batch_size=5)
    )
    for manifest in session.lane.manifests:
        report = learn(session, examples_of(session, manifest.sequence))
    return {"events": report.events, "finite": report.loss is not None and report.nonfinite == 0}


def threads_of_the_group() -> list[str]:
    found = []
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            found.append(name.read_text().strip())
        except OSError:  # it has ended
            continue
    return sorted(name for name in found if "gloo" in name)


def main() -> None:
    """As a rank."""
    ranks = Ranks.from_environment("cpu")
    found = numbers(sys.argv[1], sys.argv[2], ranks)
    few = small_batches(sys.argv[1], sys.argv[2], ranks)
    sent = [
        float(ranks.traffic.sent_bytes[purpose])
        for purpose in ("features", "embeddings", "gradients", "memory")
    ]
    every = ranks.total(sent)
    if ranks.rank == 0:
        torch.save({"numbers": found, "few": few, "sent": every}, Path(sys.argv[3]))
    ranks.close()
    # The kernel still lists a thread for a moment after it was joined.
    until_s = time.monotonic() + 20
    while (left := threads_of_the_group()) and time.monotonic() < until_s:
        time.sleep(0.01)
    if left:
        sys.exit(f"close() left threads of the group behind, which may abort the process at its end: {left}")


if __name__ == "__main__":
    main()
