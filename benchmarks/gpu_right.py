"""Whether a strategy comes to the host's numbers on a device: python benchmarks/gpu_right.py --strategy whole.

Every model that the strategy trains learns two snapshots of made-up events and predicts three, on the host and on the device,
without dropout. Logits must be equal to 1e-4 before anything was learned. Afterwards their mean difference must be below
5e-3 of the largest logit: Adam divides by the root of a gradient's square, so a gradient that is rounding alone moves a
weight as far as any other, and single logits differ by some 1e-2.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import torch
from gpu_common import DEVICES, SNAPSHOTS, event_store, fresh_peak, peak_mib, waits
from harness import settled
from torch import nn

from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import STRATEGIES, strategies_for
from freshet_graph.trainer.tasks.link_prediction import predict

BEFORE, AFTER = 1e-4, 5e-3
WHOLE_BATCHES = {"snapshots": [1.0], "vertices": [1.0], "newest_share": 1.0, "steps": 4}
PARAMS: dict[str, dict[str, Any]] = {"hybrid": WHOLE_BATCHES, "whole": {"steps": 2}, "snapshot": {"steps": 2}}
TITLES = "strategy, model | unlearned, apart | learned, mean apart | most | waits a step | ms a step | on the host | MiB"


class Way(NamedTuple):
    """One model's way over the stream: logits, waits of the second snapshot by place, and what a step of it costs."""

    scores: list[np.ndarray]
    places: Counter[str]
    steps: int
    step_s: float
    peak: str


def way(store: Path, strategy: str, model: str, device: str, *, count: bool = False) -> Way:
    ranks, places, scores = Ranks.from_environment(device), Counter[str](), []  # type: ignore[arg-type]
    session = harness.session_of(
        store, ranks, lane="sep" if strategy == "pac" else "hash", model=model, strategy=strategy, window=2,
        strategy_params=PARAMS.get(strategy, {}), optimisation={"batch_size": 100},
    )  # fmt: skip
    for module in session.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    fresh_peak(ranks.device)
    steps, step_s = 0, 0.0
    for number in range(SNAPSHOTS):
        examples = harness.examples_of(session, [session.lane.manifests[number]])
        predicted = predict(session.strategy, session.model, None, examples.only_random(), ranks)
        assert predicted is not None
        scores.append(np.concatenate([predicted.positive[:, 0], predicted.negative[:, 0]]))
        if number == SNAPSHOTS - 1:
            break
        began = settled(ranks.device)
        with waits(ranks.device if count and number else torch.device("cpu"), places):
            steps = session.strategy.learn([examples], 0).steps
        step_s = (settled(ranks.device) - began) / max(steps, 1)
    session.strategy.embeddings(np.arange(5))
    peak = peak_mib(ranks.device)
    session.close()
    return Way(scores, places, steps, step_s, peak)


def compared(store: Path, strategy: str, device: str) -> Iterator[list[str]]:
    """A row for each model; a line that begins with WRONG for those that differ."""
    for model in sorted(name for name in MODELS.all() if strategy in strategies_for(name)):
        try:
            host = way(store, strategy, model, "cpu")
            if device == "cuda":
                way(store, strategy, model, device)  # lets libraries load
            seen = way(store, strategy, model, device, count=True)
            timed = way(store, strategy, model, device) if device == "cuda" else seen
        except Exception as error:  # noqa: BLE001  the other models are worth having
            traceback.print_exc()
            print(f"WRONG: {strategy} {model}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        apart = [np.abs(a - b) for a, b in zip(host.scores, timed.scores, strict=True)]
        largest = max(1.0, *(float(np.abs(each).max()) for each in host.scores))
        mean = max(float(each.mean()) for each in apart[1:])
        if not (float(apart[0].max()) <= BEFORE and mean <= AFTER * largest):
            print(f"WRONG: {strategy} {model}: scores differ from the host's", flush=True)
        for place, times in seen.places.most_common(5):
            print(f"  waited {times} times at {place}", flush=True)
        most = max(float(each.max()) for each in apart[1:])
        yield [
            f"`{strategy}`, `{model}`", f"{apart[0].max():.1e}", f"{mean:.1e}", f"{most:.1e}",
            f"{seen.places.total() / max(seen.steps, 1):.2f}" if device == "cuda" else "–",
            f"{1000 * timed.step_s:.2f}", f"{1000 * host.step_s:.2f}", timed.peak,
        ]  # fmt: skip


def main() -> None:
    strategies = {"required": True, "choices": sorted(STRATEGIES.all())}
    given = harness.options(__doc__, quiet=True, device=DEVICES, strategy=strategies)
    torch.set_num_threads(1)
    with harness.scratch() as folder:
        store = event_store(folder / "store", 900)
        harness.table(TITLES, compared(store, given.strategy, given.device), keep_going=True)


if __name__ == "__main__":
    main()
