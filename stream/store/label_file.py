"""Labels of nodes from a file, for tasks of the trainer."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from freshet_graph.schemas.events import IdKind, id_type
from freshet_graph.stream.decode.columns import canonical
from freshet_graph.stream.decode.files import readable
from freshet_graph.stream.decode.validate import Rules, check
from freshet_graph.stream.service.failure import Failure

COLUMNS = ("node", "t", "label")


def read_labels(path: Path, ids: IdKind, classes: int) -> pa.RecordBatch:
    """Read a file of labels.

    Args:
        path: Parquet, or CSV with a header; columns ``node``, ``t`` (seconds, or RFC 3339) and ``label``.
        ids: Kind of the nodes' ids.
        classes: K.

    Returns:
        ``src`` (the node's id), ``t`` (int64, microseconds) and ``label`` (int32, 0 to K − 1), in the file's order.

    Raises:
        Failure: It cannot be read, lacks a column, or a row has no node, no time or none of K labels; the sentence names the
            row, from 1 without the header.
    """
    with readable(path):
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            table = pq.read_table(path)
        else:
            types = pacsv.ConvertOptions(column_types={"node": id_type(ids)})
            table = pacsv.read_csv(path, convert_options=types)
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing:
            raise Failure(
                f"{path} has no column {missing[0]}; found {', '.join(table.column_names)}. Labels of nodes have "
                f"{', '.join(COLUMNS)}"
            )
        node, t, label = (table[name].combine_chunks() for name in COLUMNS)
        rows = pa.RecordBatch.from_arrays([node, node, t, label], ["src", "dst", "t", "label"])
        draft = canonical(rows, ids, "s", time_texts=True, shown=_shown)
        check(draft, Rules(ids, offline=True, file_unit="s"), _shown)
    label = draft.batch["label"].fill_null(-1).to_numpy()
    draft.faults.refuse(
        (label < 0) | (label >= classes),
        "label",
        lambda row: (
            f"label is {draft.batch['label'][row]}, expected 0 to {classes - 1}. Number the classes from 0, or set classes"
        ),
    )
    for row in draft.faults.refused_rows()[:1]:
        raise Failure(
            f"{path}, row {row + 1}: {draft.faults.of(row)[1]} (rows count from 1, without the header)"
        )
    return draft.batch.select(["src", "t", "label"])


def _shown(name: str) -> str:
    return "node" if name in ("src", "dst") else name
