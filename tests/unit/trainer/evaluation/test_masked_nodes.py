"""``--masked-nodes``: nodes that are hidden from training, as in the protocol of TGN and TIGE."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from offline_protocol import FIGURES
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture
from trainer_streams import meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.evaluation.split import draw_masked, split_by_time, without_training_of

SHARES = (0.6, 0.2, 0.2)


def events(seed: int = 0) -> pa.Table:
    return meetings(seed=seed, snapshots=10, a_snapshot=60, nodes=40, features=False)


def drawn(table: pa.Table, share: float, seed: int = 0) -> tuple[pa.Table, set[int]]:
    """The inserts with the split's part of each, and the masked nodes."""
    inserts = table.filter(pa.array(table["op"].to_numpy() == 1))
    split = split_by_time(inserts["t"].to_numpy(), SHARES)
    return inserts, set(draw_masked(inserts, split, share, seed).to_pylist())


def ends_of(table: pa.Table, chosen: np.ndarray) -> set[int]:
    return {*table["src"].to_numpy()[chosen].tolist(), *table["dst"].to_numpy()[chosen].tolist()}


def test_they_are_a_share_of_all_nodes_drawn_by_the_seed_among_those_that_come_later() -> None:
    table = events()
    rows = table.to_pylist()
    early = [{**row, "src": 100 + row["src"]} for row in rows[:50]]  # sources that only training has
    table = pa.Table.from_pylist(early + rows[50:], schema=table.schema)
    inserts, masked = drawn(table, 0.25)
    later = inserts["t"].to_numpy() > split_by_time(inserts["t"].to_numpy(), SHARES).train_until_us
    assert len(masked) == int(0.25 * len(ends_of(inserts, later | True)))
    assert masked <= ends_of(inserts, later)
    assert masked == drawn(table, 0.25)[1] != drawn(table, 0.25, seed=1)[1]
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    assert drawn(shuffled, 0.25)[1] == masked, "whatever the order of the file"
    assert not drawn(table, 0.0)[1]
    assert drawn(table, 0.9)[1] == ends_of(inserts, later)


def test_their_events_leave_the_training_part_alone_and_some_must_stay() -> None:
    table = events()
    inserts, masked = drawn(table, 0.2)
    split = split_by_time(inserts["t"].to_numpy(), SHARES)
    kept = without_training_of(pa.array(sorted(masked)), table, split)
    expected = [
        row
        for row in table.to_pylist()
        if row["t"] > split.train_until_us or not {row["src"], row["dst"]} & masked
    ]
    assert kept.to_pylist() == expected
    assert len(expected) < len(table)
    with pytest.raises(Failure, match=r"no training event is left without the 40 masked nodes"):
        without_training_of(pa.array(range(40)), table, split)


def evaluated(folder: Path, table: pa.Table, *arguments: str, **keys: object) -> dict:
    seconds = pa.array(table["t"].to_numpy() / 1e6)
    pq.write_table(table.select(["src", "dst", "op"]).append_column("t", seconds), folder / "e.parquet")
    config = write(
        folder,
        **{
            "model": "tgn",
            "strategy": "sequential",
            "model_params": {"memory": 8, "time_width": 8},
            "optimisation": {"epochs": 1, "batch_size": 50},
            "interval_s": 1.0,
            **keys,
        },
    )
    split = ",".join(map(str, SHARES))
    code, result, error = invoke(
        "evaluate", "--config", config, "--data", str(folder / "e.parquet"), "--split", split, *arguments
    )
    assert code == 0, error
    return result


@pytest.mark.usefixtures("clean_environment")
def test_no_figure_depends_on_whom_masked_nodes_met_in_training(tmp_path: Path) -> None:
    """Through the command: other partners of theirs, the same nodes and times. Figures of masked nodes have their own name."""
    table = events()
    inserts, masked = drawn(table, 0.2)
    until = split_by_time(inserts["t"].to_numpy(), SHARES).train_until_us
    src, dst = (table[name].to_numpy().copy() for name in ("src", "dst"))
    hidden = (table["t"].to_numpy() <= until) & np.isin(src, sorted(masked))
    assert hidden.sum() > 10
    dst[hidden] = (dst[hidden] + 7) % 40
    other = table.set_column(table.schema.get_field_index("dst"), "dst", pa.array(dst))
    results = [evaluated(tmp_path, one, "--masked-nodes", "0.2") for one in (table, other)]
    figures = {*FIGURES, "masked_ap", "inductive_ap", "random_ap"}
    assert figures <= results[0].keys()
    assert [results[0][name] for name in sorted(figures)] == [results[1][name] for name in sorted(figures)]
    assert (results[0]["inductive_protocol"], results[0]["masked_nodes"]) == ("masked", len(masked))
    plain = [evaluated(tmp_path, one) for one in (table, other)]
    assert plain[0]["ap"] != plain[1]["ap"]
    assert (plain[0]["inductive_protocol"], "masked_ap" in plain[0]) == ("new", False)


@pytest.mark.usefixtures("clean_environment")
def test_events_of_new_nodes_are_inductive_and_only_those_of_masked_ones_masked(tmp_path: Path) -> None:
    """In the test half of the events have node 90, which is new; masked nodes are drawn from all the others too."""
    rows = events().to_pylist()
    rows = [{**row, "dst": 90} if n % 2 and n > 500 else row for n, row in enumerate(rows)]
    result = evaluated(tmp_path, pa.Table.from_pylist(rows, schema=events().schema), "--masked-nodes", "0.1")
    assert len({result["ap"], result["inductive_ap"], result["transductive_ap"], result["masked_ap"]}) == 4


@pytest.mark.usefixtures("clean_environment")
def test_a_task_about_nodes_has_none(tmp_path: Path) -> None:
    config = write(tmp_path, model="tgcn", strategy="whole", task="node-regression", interval_s=1.0)
    pq.write_table(pa.table({"src": [1], "dst": [2], "t": [1]}), tmp_path / "e.parquet")
    arguments = ["--data", str(tmp_path / "e.parquet"), "--masked-nodes", "0.1"]
    code, _, error = invoke("evaluate", "--config", config, *arguments)
    assert (code, "--masked-nodes is about pairs, but task node-regression" in error) == (1, True)
