"""Loss by epoch on one rank and on several: python benchmarks/loss_curves.py [--figure FILE.png] (ESDG, Fig. 6).

``freshet-trainer evaluate`` trains each model for 50 epochs with the strategy ``whole`` on one rank, then with ``snapshot`` on
four, the same data, seed and negatives, in snapshots of ``--days``. Printed is the largest difference of the two losses of an
epoch, as a share of the loss. Gradients differ by float32's rounding, which grows from step to step. The figure's data are left
beside it as FILE.csv.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

MODELS = ["tmgcn", "cdgcn", "evolvegcn-o", "evolvegcn-h"]


def losses(model: str, strategy: str, ranks: int, given: Any) -> list[float]:
    """Mean training loss of each epoch."""
    _, log = harness.evaluated(
        harness.existing(given.data), ranks, lane="distdy", model=model, strategy=strategy, window=8,
        model_params={"hidden": 32, "signature": 32}, optimisation={"epochs": given.epochs},
        interval_s=86_400 * given.days,
    )  # fmt: skip
    found = [line["loss"] for line in log if line.get("event") == "epoch"]
    harness.require(len(found) == given.epochs, f"{len(found)} of {given.epochs} epochs of {model}")
    return found


def draw_from(data: Path, picture: Path) -> None:
    """Draw the curves of a CSV, one panel for each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves: dict[str, dict[str, list[float]]] = {}
    with data.open(newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault(row["model"], {}).setdefault(row["strategy"], []).append(float(row["loss"]))
    figure, axes = plt.subplots(1, len(curves), figsize=(3 * len(curves), 2.6), layout="constrained")
    for axis, (model, by_strategy) in zip(np.atleast_1d(axes), curves.items(), strict=True):
        looks = ("0.6", 4), ("tab:blue", 1.2)
        for (name, curve), (colour, width) in zip(by_strategy.items(), looks, strict=True):
            axis.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=width, label=name)
        axis.set(title=model, xlabel="epoch")
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("training loss")
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    data = harness.DATA / "bitcoin_otc.parquet"
    given = harness.options(
        __doc__, data=data, models=MODELS, epochs=50, ranks=4, days=60, figure={"type": Path}
    )
    points: list[tuple[str, str, int, str]] = []

    def rows() -> Iterator[list[str]]:
        for model in given.models:
            one, several = losses(model, "whole", 1, given), losses(model, "snapshot", given.ranks, given)
            for name, curve in (("whole, 1 rank", one), (f"snapshot, {given.ranks} ranks", several)):
                points.extend((model, name, epoch, f"{loss:.6f}") for epoch, loss in enumerate(curve, 1))
            apart = np.abs(np.array(several) / np.array(one) - 1).max()
            yield [f"`{model}`", f"{one[0]:.4f}", f"{one[-1]:.4f}", f"{apart:.1e}"]

    harness.table("model | first epoch's loss | last epoch's | largest difference, share of the loss", rows())
    if given.figure:
        with given.figure.with_suffix(".csv").open("w", newline="") as file:
            csv.writer(file).writerows([("model", "strategy", "epoch", "loss"), *points])
        draw_from(given.figure.with_suffix(".csv"), given.figure)


if __name__ == "__main__":
    main()
