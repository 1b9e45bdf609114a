"""An epoch of ``snapshot`` on one rank by the number of blocks: python benchmarks/blocks.py [--models NAME …].

A real stream is followed through a horizon of snapshots, the last of which is then learned again and again from those before.
Numbers of blocks take turns; medians of seconds of the processor. Beside them what ``auto`` chooses with a budget of a part of
what one block needs, and its seconds over those of the fastest number that fits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import DAY_US

EDGE_LIFE, WINDOW = 10, 4
NUMBERS = [1, 2, 3, 4, 6, 8, 16]
BUDGETS = [1, 0.5, 0.3, 0.15]
"""Of what one block needs."""


def rows(store: Path, given: Any) -> Iterator[list[str]]:
    for model in given.models:
        horizon = given.horizon
        session = harness.session_of(
            store, lane="hash", model=model, strategy="snapshot", strategy_params={"blocks": "auto"}, window=WINDOW,
            horizon=horizon, optimisation={"batch_size": 1 << 20},
        )  # fmt: skip
        examples = harness.examples_of(session, list(session.lane.manifests)[-horizon - 1 :])
        strategy: Any = session.strategy
        strategy.learn([examples], 0)  # measures
        measured = strategy.budget.measured[horizon]
        need = {n: -(-horizon // n) * measured.saved + (n - 1) * measured.carried for n in NUMBERS}

        def learn(number: int, strategy: Any = strategy, examples: Any = examples) -> None:
            strategy.number_of_blocks = number
            harness.require(strategy.learn([examples], 0).steps > 0, "nothing was learned")

        ways = {str(number): lambda n=number: learn(n) for number in NUMBERS}
        seconds = harness.medians(harness.in_turns(ways, given.repeat))
        strategy.number_of_blocks, cells = "auto", []
        for share in BUDGETS:
            budget = strategy.budget.bytes = int(share * need[1])
            if min(need.values()) > budget:
                cells.append("–")
                continue
            layout = strategy.timeline.before_newest(examples.part(np.arange(1))[0].ends[0][:0])
            chosen = len(strategy.blocks(session.model, layout, last=True).ranges)
            fastest = min(seconds[str(number)] for number in NUMBERS if need[number] <= budget)
            nearest = min(NUMBERS, key=lambda number: abs(number - chosen))
            cells.append(f"{chosen}: {seconds[str(nearest)] / fastest:.2f}")
        yield [f"`{model}`", *(f"{each:.3f}" for each in seconds.values()), *cells]


def main() -> None:
    data = harness.DATA / "sx_mathoverflow.parquet"
    given = harness.options(
        __doc__, data=data, days=7, models=["cdgcn", "tmgcn", "dysat"], horizon=16, repeat=3
    )
    torch.set_num_threads(1)
    with harness.scratch() as folder:
        lanes = harness.lanes("hash", parts=1, edge_life=EDGE_LIFE)
        store = harness.built(folder / "store", harness.existing(given.data), given.days * DAY_US, lanes)
        titles = [*map(str, NUMBERS), *(f"auto, {share:g} of the memory" for share in BUDGETS)]
        harness.table("an epoch in blocks, s | " + " | ".join(titles), rows(store, given))


if __name__ == "__main__":
    main()
