"""One rank of test_trainer_ranks.py: numbers of a few steps of ``vertex``, written to a file by rank 0.

Usage: rank_numbers.py STORE LANE OUT; ranks by torchrun's environment variables.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))  # as a rank

from trainer_sessions import learn, lesson_of, session_on

from schemas.trainer_config import Optimisation
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.tasks.link_prediction import predict

HOPS = {"full": [None, None], "sampled": [3, 4]}


def numbers(store: str, lane_name: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Predictions and gradients of every snapshot, with full and with sampled neighbourhoods."""
    lane = LaneReader(store, lane_name)
    found: dict[str, torch.Tensor] = {}
    for kind, fanouts in HOPS.items():
        params = {"hidden": 8, "signature": 8, "fanouts": fanouts}
        steps = Optimisation(batch_size=5, grad_clip=None)
        options = {"window": 3, "model_params": params, "strategy_params": {"inference_nodes": 7}}
        session = session_on(lane, "vertex", "sage-linear", ranks, steps, **options)
        model, strategy = session.model, session.strategy
        for manifest in lane.manifests:
            examples = lesson_of(session, manifest.sequence)
            events = len(examples)
            total = 2 * sum(ranks.exchange_sizes([events] * ranks.size))
            loss = strategy.loss(examples, np.arange(events), 5)
            model.zero_grad()
            (loss / max(total, 1)).backward()
            ranks.sum_gradients(model.parameters())
            key = f"{kind} {manifest.tau}"
            found[f"{key} loss"] = torch.tensor(ranks.total([float(loss.detach())])[0])
            for name, parameter in model.named_parameters():
                found[f"{key} gradient {name}"] = parameter.grad.clone()
            predictions = predict(strategy, model, model, examples, ranks)
            if predictions is not None:
                found[f"{key} positive"] = torch.from_numpy(predictions.positive)
                found[f"{key} negative"] = torch.from_numpy(predictions.negative)
                found[f"{key} ranks"] = torch.from_numpy(predictions.ranks)
        report = learn(session, examples)  # batches of 5: ranks have unequally many, and one may have none
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
