"""Strong scaling of ``snapshot`` to 128 ranks, simulated: python benchmarks/snapshot_scaling.py [--models NAME …] (ESDG, Fig. 5).

Nothing here is a cluster. Every rank is a thread of this machine that runs the strategy as it is, on its share of snapshots and
nodes, one thread at a time. What a rank computes is measured: the processor seconds of its thread. What crosses ranks is counted
by the byte, and takes the seconds of an imagined network with its own clock: a collective begins when the last rank has come,
and takes α · ⌈log₂ P⌉ + β · (bytes of the rank that sends most). α and β are measured on this machine, between two processes that
gloo joins, by the fastest all-reduce of one number and exchange of ``--mib``; ``--alpha`` with ``--beta`` replace them. A pass is
over when the last rank's clock says so.

``--faster F`` counts a processor second as 1 / F s, for devices that much faster beside the same network. A stream is followed
through a horizon, all snapshots of which are learned in each pass (``supervise: horizon``), a tenth of the events as samples by
one linear layer, as in ESDG. The median of ``--repeat`` passes counts. Printed are the seconds of one rank, how many times as
fast P ranks are, and the part of a pass at the last P in which the slowest rank waited for others. Beside it stands ``group``
(DyGNeX): the same questions, each from the window before it, in groups that ``greedy`` schedules.

``--weak`` gives every rank as many snapshots (Fig. 7): P ranks learn the newest P / (last P) of the horizon, and are as fast as
the events that they learn per second, beside those of the first P.
"""

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import torch
from harness import DAY_US
from thread_ranks import FakeLink, side_by_side

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow, past_examples
from freshet_graph.trainer.strategies.dygnex.group import GroupOptions, GroupStrategy
from freshet_graph.trainer.strategies.esdg.snapshot import SnapshotOptions, SnapshotStrategy
from freshet_graph.trainer.strategies.interface import Setting

EDGE_LIFE, WIDTH = 10, 6
"""ESDG's width of all layers."""
WAYS: dict[str, Callable[[Setting], Any]] = {
    name: lambda setting, blocks=blocks, rows=rows: SnapshotStrategy(
        setting, SnapshotOptions(supervise="horizon", blocks=blocks, rows=rows)
    )
    for name, blocks, rows in (
        ("active rows", 1, "active"),
        ("active rows, 2 blocks", 2, "active"),
        ("all rows", 1, "all"),
        ("all rows, 2 blocks", 2, "all"),
    )
}
WAYS["group"] = lambda setting: GroupStrategy(
    setting, GroupOptions(composition="schedule", reproducible=False)
)
WINDOW = 4
TASK = {"sample": 0.1, "decoder": "linear"}
"""ESDG's, section 6.4."""
WARM, TIMES = 50, 500
WARM_PASSES = 1


def measured_network(mib: int) -> tuple[float, float]:
    """As one of two ranks: α, seconds, and β, seconds per byte."""
    torch.set_num_threads(1)
    ranks, lasted = Ranks.from_environment("cpu"), {1: [], mib * (1 << 20) // 8: []}
    for numbers, seconds in lasted.items():
        table, half = torch.zeros(numbers, dtype=torch.float64), [numbers // 2, numbers - numbers // 2]
        for turn in range(WARM + TIMES if numbers == 1 else 12):
            began = time.perf_counter()
            if numbers == 1:
                ranks.total([1.0])
            else:
                ranks.exchange(table.unsqueeze(1), half, [half[ranks.rank]] * 2, "rows")
            if turn >= 2:
                seconds.append(time.perf_counter() - began)
    alpha, large = (
        min(seconds) for seconds in lasted.values()
    )  # other work on the machine only adds to them
    ranks.close()
    return alpha, (large - alpha) / (mib * (1 << 20) / 2)


class Followed:
    """A stream followed through a horizon once, for all ranks: its timeline on the host, and examples of each snapshot.

    Attributes:
        questions: Of all snapshots.

    Args:
        store: With a lane named hash.
        model: Its name.
        horizon: Snapshots.
    """

    def __init__(self, store: Path, model: str, horizon: int) -> None:
        keys: dict[str, Any] = {
            "lane": "hash", "model": model, "strategy": "snapshot", "strategy_params": {"supervise": "horizon"},
            "window": WINDOW, "model_params": {"hidden": WIDTH, "signature": WIDTH}, "task_params": TASK,
            "optimisation": {"batch_size": 1 << 20},
        }  # fmt: skip
        asking, self.session = (harness.session_of(store, **keys, horizon=most) for most in (WINDOW, horizon))
        window = ExampleWindow(asking.task, horizon)
        manifests = list(asking.lane.manifests)[-horizon - 1 :]
        for manifest in manifests:
            newest = harness.examples_of(asking, [manifest])
            window.open(newest)
        self.examples = window.with_newest(past_examples(newest))
        self.questions = sum(map(len, self.examples))
        self.session.advance(manifests[-1])  # with all snapshots of the horizon
        self.active = {tau: self.session.strategy.timeline.active(tau) for tau in self.session.view.taus}

    def pass_of(
        self, way: Callable[[Setting], Any], size: int, given: Any, alpha_s: float, beta_s: float
    ) -> tuple[float, float]:
        """Seconds of the median pass of so many ranks, and those in which the slowest waited."""
        network = FakeLink(alpha_s * math.ceil(math.log2(size)), 1 / beta_s)
        of_ranks = side_by_side(
            size,
            lambda ranks: self.passes(way, ranks, given.repeat),
            network,
            worked_s=lambda: time.thread_time() / given.faster,
            turn=threading.Lock(),
        )
        slowest = sorted(max(of_pass) for of_pass in zip(*of_ranks, strict=True))
        return slowest[len(slowest) // 2]

    def passes(self, way: Callable[[Setting], Any], ranks: Any, repeat: int) -> list[tuple[float, float]]:
        """As one rank: the seconds of each pass by its clock, and those in which it waited."""
        session = self.session
        setting = Setting(
            copy.deepcopy(session.model), session.task, session.lane.header, ranks, session.config.optimisation, 0,
            session.config.horizon,
        )  # fmt: skip
        strategy = way(setting)
        strategy.take_in(session.view)
        strategy.timeline._active = dict(self.active)  # what the host knows of edges, found once
        found = []
        for epoch in range(WARM_PASSES + repeat):
            ranks.any(False)  # all begin at once
            began_s, waited_s = ranks.now_s, ranks.traffic.wait_s
            harness.require(strategy.learn(self.examples, epoch).steps > 0, "nothing was learned")
            found.append((ranks.now_s - began_s, ranks.traffic.wait_s - waited_s))
        return found[WARM_PASSES:]


def rows(store: Path, given: Any, alpha_s: float, beta_s: float) -> Iterator[list[str]]:
    for model in given.models:
        horizons = [
            given.horizon * size // given.ranks[-1] if given.weak else given.horizon for size in given.ranks
        ]
        followed = {horizon: Followed(store, model, horizon) for horizon in set(horizons)}
        for name in harness.chosen(given.ways, WAYS):
            passes, rates = [], []
            for size, horizon in zip(given.ranks, horizons, strict=True):
                passes.append(followed[horizon].pass_of(WAYS[name], size, given, alpha_s, beta_s))
                rates.append(followed[horizon].questions / passes[-1][0])
            first_s, (last_s, wait_s) = passes[0][0], passes[-1]
            cells = [f"{rate / rates[0]:.1f}" for rate in rates[1:]]
            yield [f"`{model}`", name, f"{first_s:.3f}", *cells, f"{wait_s / last_s:.0%}"]


def main() -> None:
    given = harness.options(
        __doc__, data=harness.DATA / "sx_mathoverflow.parquet", days=7, horizon=256, ranks=[1, 2, 4, 8, 16, 32, 64, 128],
        models=["tmgcn", "cdgcn", "evolvegcn-o"], ways=[""][:0], weak=False, repeat=3, faster=1.0, mib=16, alpha=0.0, beta=0.0,
    )  # fmt: skip
    torch.set_num_threads(1)
    alpha_s, beta_s = given.alpha, given.beta
    if not alpha_s or not beta_s:
        alpha_s, beta_s = harness.on_ranks(2, measured_network, given.mib)[0]
    print(f"α {alpha_s * 1e6:.0f} µs, β 1 s / {1e-9 / beta_s:.2f} GB, ranks {given.faster:g} times as fast")
    with harness.scratch() as folder:
        lanes = harness.lanes("hash", parts=1, edge_life=EDGE_LIFE)
        store = harness.built(folder / "store", harness.existing(given.data), given.days * DAY_US, lanes)
        titles = " | ".join(f"P = {size}" for size in given.ranks[1:])
        harness.table(
            f"model | way | a pass at P = {given.ranks[0]}, s | {titles} | waiting at P = {given.ranks[-1]}",
            rows(store, given, alpha_s, beta_s),
        )


if __name__ == "__main__":
    main()
