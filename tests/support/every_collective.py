"""Every method of ``Ranks`` once, with inputs that follow from the rank: the same results whatever joins the ranks.

As a process: every_collective.py OUT; one of the ranks that torchrun's environment variables tell of, writes OUT-rank.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from freshet_graph.trainer.ranks import Ranks

WIDTH = 3


def plan(size: int) -> np.ndarray:
    """Rows that each rank sends to each, int64 (size, size): uneven, and the last rank sends and gets nothing."""
    rows = np.random.default_rng(size).integers(0, 4, (size, size))
    if size > 1:
        rows[-1], rows[:, -1] = 0, 0
    return rows


def drawn(rank: int, *shape: int) -> Tensor:
    """A rank's numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def parameters(rank: int) -> list[nn.Parameter]:
    """Three, of which one has a gradient everywhere, one on rank 0 only, and one nowhere."""
    made = [nn.Parameter(drawn(9, *shape)) for shape in ((2, 3), (4,), (1,))]
    made[0].grad = drawn(rank, 2, 3)
    if rank == 0:
        made[1].grad = drawn(7, 4)
    return made


def every_collective(ranks: Ranks) -> dict[str, Any]:
    """Results by the method's name; numbers, lists and tensors."""
    rank, size = ranks.rank, ranks.size
    sent, received = plan(size)[rank].tolist(), plan(size)[:, rank].tolist()
    rows = drawn(rank, sum(sent), WIDTH).requires_grad_()
    handle = ranks.begin_exchange(rows, sent, received, "begun")
    arrived = ranks.exchange(rows, sent, received, "rows")
    later = handle.wait()
    few = drawn(rank, rank, WIDTH).requires_grad_()
    gathered = ranks.gather_rows(few, list(range(size)), "gathered")
    torch.autograd.backward([arrived.square().sum() + (later * 2).sum() + (gathered**3).sum()])
    summed, averaged = parameters(rank), [drawn(rank, 2), drawn(rank + 10, 1, 3)]
    loss = ranks.sum_gradients(summed, torch.tensor(rank + 0.25, dtype=torch.float64))
    ranks.average(averaged)
    numbers = {number: [drawn(number, 3), drawn(number, 2, 2)] for number in range(rank, 6, size)}
    row, column = ranks.split(1, size)
    found = {
        "any": ranks.any(rank == 0, False),
        "maximum": ranks.maximum([rank, -rank]),
        "total": ranks.total([rank + 0.5]),
        "from_first": ranks.from_first(rank + 7),
        "text_from_first": ranks.text_from_first(f"rank {rank} über"),
        "bytes_from_first": ranks.bytes_from_first(bytes([rank, 7]), "bytes").hex(),
        "unlike_first": ranks.unlike_first("odd" if rank % 2 else "even"),
        "on_first": ranks.on_first(lambda: rank + 5),
        "gather_numbers": ranks.gather_numbers([rank, -rank]).tolist(),
        "exchange_blocks": [
            each.tolist() if isinstance(each, np.ndarray) else each
            for each in ranks.exchange_blocks(np.arange(sum(sent)), sent, "blocks")
        ],
        "exchange_tables": ranks.exchange_tables(
            [rows.detach(), torch.arange(sum(sent), dtype=torch.int32)], sent, received, "tables"
        ),
        "gather_blocks": ranks.gather_blocks(np.arange(rank), "blocks")[0].tolist(),
        "exchange": [arrived.detach(), rows.grad],
        "begin_exchange": later.detach(),
        "exchange_array": ranks.exchange_array(np.arange(sum(sent)), sent, received, "array").tolist(),
        "gather_rows": [gathered.detach(), few.grad],
        "sum_gradients": [*(each.grad for each in summed), loss],
        "sum_in_order": ranks.sum_in_order(
            numbers, [torch.zeros(3).double(), torch.zeros(2, 2).double()], "ordered"
        ),
        "sum_rows": ranks.sum_rows(drawn(rank, 4), "summed"),
        "average": averaged,
        "begin_average": ranks.begin_average([drawn(rank, 3)], rank + 1.0).wait(),
        "sum_array": ranks.sum_array(np.array([rank, 1]), "summed").tolist(),
        "largest": ranks.largest(np.array([rank, -rank]), "largest").tolist(),
        "union": ranks.union(np.array([rank, 3], np.int64)).tolist(),
        "split": [row.total([1.0]), column.total([1.0]), row.rank, column.rank],
    }
    return found


def plain(value: Any) -> Any:
    """Without tensors, so that == compares."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, Tensor) else value


def told(ranks: Ranks) -> dict[str, Any]:
    """Results, and what they cost, as JSON has it."""
    results, traffic = plain(every_collective(ranks)), ranks.traffic
    assert traffic.seconds.keys() == traffic.begun.keys()
    return {"results": results, "begun": dict(traffic.begun), "sent_bytes": dict(traffic.sent_bytes)}


if __name__ == "__main__":
    ranks = Ranks.from_environment("cpu")
    Path(f"{sys.argv[1]}-{ranks.rank}").write_text(json.dumps(told(ranks)))
    assert all(seconds > 0 for seconds in ranks.traffic.seconds.values())
    ranks.close()
