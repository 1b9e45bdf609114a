"""One rank of test_trainer_ranks.py: numbers of a few steps of ``vertex``, written to a file by rank 0.

Usage: rank_numbers.py STORE LANE OUT; ranks by torchrun's environment variables.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch

from schemas.trainer_config import Optimisation
from stream.store.lane.reader import LaneReader
from stream.store.window.view import WindowView
from trainer.data.examples import Sampling, prepare
from trainer.data.history import History
from trainer.models.interface import ModelShape, create_model
from trainer.ranks import Ranks
from trainer.scoring.predictions import predict
from trainer.strategies.interface import create_strategy

HOPS = {"full": [None, None], "sampled": [3, 4]}


def numbers(store: str, lane_name: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Predictions and gradients of every snapshot, with full and with sampled neighbourhoods."""
    lane = LaneReader(store, lane_name)
    found: dict[str, torch.Tensor] = {}
    for kind, fanouts in HOPS.items():
        torch.manual_seed(0)
        shape = ModelShape(lane.header.node_features, 3)
        params = {"hidden": 8, "signature": 8, "fanouts": fanouts}
        model = create_model("sage-linear", shape, params).double().float()
        strategy = create_strategy("vertex", {"inference_nodes": 7}, "sage-linear")
        strategy.setup(model, lane.header, ranks, Optimisation(batch_size=5, grad_clip=None), 0)
        parts = [part for part in range(lane.header.parts) if part % ranks.size == ranks.rank]
        window, history = WindowView(lane, 4, parts), History()
        for manifest in lane.manifests:
            window.advance(manifest)
            strategy.advance(window)
            nodes = window.num_nodes
            examples = prepare(
                manifest.tau, window.events(manifest.tau), history, num_nodes=nodes,
                known=np.ones(nodes, np.bool_), owned=strategy.owned(nodes), sampling=Sampling(0, 6),
            )  # fmt: skip
            events = len(examples.positive)
            total = 2 * sum(ranks.exchange_sizes([events] * ranks.size))
            loss = strategy.gradients(examples, np.arange(events), total, 5)
            key = f"{kind} {manifest.tau}"
            found[f"{key} loss"] = torch.tensor(ranks.total([loss])[0])
            for name, parameter in model.named_parameters():
                found[f"{key} gradient {name}"] = parameter.grad.clone()
            predictions = predict(strategy, model, model, examples, ranks)
            if predictions is not None:
                found[f"{key} positive"] = torch.from_numpy(predictions.positive)
                found[f"{key} negative"] = torch.from_numpy(predictions.negative)
                found[f"{key} ranks"] = torch.from_numpy(predictions.ranks)
        report = strategy.train(examples, 0)  # batches of 5: ranks have unequally many, and one may have none
        found[f"{kind} trained events"] = torch.tensor(report.events)
        found[f"{kind} finite"] = torch.tensor(float(np.isfinite(report.loss or np.nan)))
    return found


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
    sent = [float(ranks.sent_bytes[purpose]) for purpose in ("features", "embeddings", "gradients")]
    every = ranks.total(sent)
    if ranks.rank == 0:
        torch.save({**found, "sent": torch.tensor(every)}, Path(sys.argv[3]))
    ranks.close()
    # The kernel still lists a thread for a moment after it was joined.
    until_s = time.monotonic() + 20
    while (left := threads_of_the_group()) and time.monotonic() < until_s:
        time.sleep(0.01)
    if left:
        sys.exit(f"close() left threads of the group behind, which may abort the process at its end: {left}")


if __name__ == "__main__":
    main()
