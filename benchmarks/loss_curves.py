"""Loss by epoch on one rank and on several: python benchmarks/loss_curves.py [--figure FILE.png] (ESDG, Fig. 6).

``freshet-trainer evaluate`` trains each model for 50 epochs with the strategy ``whole`` on one rank, then with ``snapshot`` on
four, the same data, seed and negatives. Told is the largest difference of the two losses of an epoch, as a share of the loss.
Gradients differ by float32's rounding, which grows from step to step. The figure's data are left beside it as FILE.csv.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MODELS = ("tmgcn", "cdgcn", "evolvegcn-o", "evolvegcn-h")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA / "bitcoin_otc.parquet")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--days", type=int, default=60, help="Of a snapshot.")
    parser.add_argument("--figure", type=Path, help="File for the curves, PNG.")
    given = parser.parse_args()
    rows: list[tuple[str, str, int, float]] = []
    print("| model | first epoch's loss | last epoch's | largest difference, share of the loss |")
    print("| --- | --- | --- | --- |")
    for model in given.models:
        one = losses(model, "whole", 1, given)
        several = losses(model, "snapshot", given.ranks, given)
        for name, curve in ((f"whole, {_ranks(1)}", one), (f"snapshot, {_ranks(given.ranks)}", several)):
            rows += [(model, name, epoch, loss) for epoch, loss in enumerate(curve, 1)]
        apart = np.abs(np.array(several) / np.array(one) - 1).max()
        print(f"| `{model}` | {one[0]:.4f} | {one[-1]:.4f} | {apart:.1e} |", flush=True)
    if given.figure:
        data = given.figure.with_suffix(".csv")
        with data.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("model", "strategy", "epoch", "loss"))
            writer.writerows((model, name, epoch, f"{loss:.6f}") for model, name, epoch, loss in rows)
        draw_from(data, given.figure)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def losses(model: str, strategy: str, ranks: int, given: argparse.Namespace) -> list[float]:
    """Mean training loss of each epoch."""
    keys = {
        "lane": "distdy", "model": model, "strategy": strategy, "window": 8, "model_params": {"hidden": 32, "signature": 32},
        "optimisation": {"epochs": given.epochs}, "interval_s": 86_400 * given.days,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "trainer.yaml"
        config.write_text(yaml.safe_dump(keys), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "trainer.cli",
            "evaluate",
            "--config",
            str(config),
            "--data",
            str(given.data),
        ]
        done = subprocess.run(
            [*command, "--ranks", str(ranks), "--json"],
            capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if line.get("event") == "epoch"]


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
    for axis, (model, of_model) in zip(np.atleast_1d(axes), curves.items(), strict=True):
        for (name, curve), (colour, width) in zip(
            of_model.items(), (("0.6", 4), ("tab:blue", 1.2)), strict=True
        ):
            axis.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=width, label=name)
        axis.set(title=model, xlabel="epoch")
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("training loss")
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
