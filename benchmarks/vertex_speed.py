"""CPU seconds of ``vertex`` on one rank, this tree beside another: python benchmarks/vertex_speed.py --beside FOLDER.

FOLDER is a checkout of another commit. Both learn the first 70 % of collegemsg, snapshots of two days, in ``--rounds`` turns;
each is a process of its own, whose first pass over all of them is left out. The last row is the ratio of the medians. Both
must have made the same number of steps.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import harness
import torch
from harness import DAY_US

SHARE, DAYS, LANE, PASSES = 0.7, 2, "hash", 3


def learned(store: Path, model: str) -> list[list[float]]:
    """CPU seconds of ``learn``, of all that a pass does, steps, and the mean loss, pass by pass."""
    session = harness.session_of(
        store, lane=LANE, strategy="vertex", window=4, model=model, model_params={"hidden": 64},
        optimisation={"batch_size": 200},
    )  # fmt: skip
    manifests, found = session.lane.manifests, []
    for epoch in range(PASSES + 1):
        session.rewind()
        began, learning, reports = time.process_time(), 0.0, []
        for manifest in manifests[: round(SHARE * len(manifests))]:
            session.advance(manifest)
            examples = session.task.examples(session.view, session.strategy, epoch=epoch)
            since = time.process_time()
            reports.append(session.strategy.learn([examples], epoch))
            learning += time.process_time() - since
        events = sum(report.events for report in reports)
        loss = sum((report.loss or 0.0) * report.events for report in reports) / events
        steps = sum(report.steps for report in reports)
        found.append([learning, time.process_time() - began, float(steps), loss])
    return found[1:]


def main() -> None:
    data = harness.DATA / "collegemsg.parquet"
    given = harness.options(
        __doc__, data=data, beside={"type": Path}, model="sage-linear", rounds=3,
        child={"action": "store_true", "help": argparse.SUPPRESS},
    )  # fmt: skip
    torch.set_num_threads(1)
    if given.child:
        with harness.scratch() as folder:  # each tree reads a store that it has made
            lanes = harness.lanes(LANE, parts=4)
            store = harness.built(folder / "store", given.data, DAYS * DAY_US, lanes)
            print(json.dumps(learned(store, given.model)))
        return
    harness.require(given.beside, "name a checkout of another commit with --beside")
    harness.begin()
    turns = harness.by_trees(
        given.beside, given.rounds, __file__, "--child", "--model", given.model, "--data", given.data
    )
    theirs, ours = ([row for turn in found for row in turn] for found in turns)
    harness.require(
        {row[2] for row in theirs} == {row[2] for row in ours} != {0.0}, "the trees made other steps"
    )

    def cells(rows: list[list[float]]) -> list[Any]:
        learning, everything, steps, _ = (median(column) for column in zip(*rows, strict=True))
        losses = ", ".join(f"{row[3]:.4f}" for row in rows[:PASSES])
        return [f"{learning:.2f}", f"{everything:.2f}", f"{steps:.0f}", losses]

    ratios = [f"{median(row[i] for row in theirs) / median(row[i] for row in ours):.2f}" for i in (0, 1)]
    rows = [["beside", *cells(theirs)], ["this tree", *cells(ours)], ["times as fast", *ratios, "", ""]]
    harness.table("tree | learn, CPU s | a whole pass | steps | losses of passes", rows)


if __name__ == "__main__":
    main()
