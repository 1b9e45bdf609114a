"""Labels of nodes that change, in a file."""

import atexit
import functools
import tempfile
from pathlib import Path

NODES, SNAPSHOTS = 60, 8


@functools.cache
def labels_file(*, flipped_from: int = SNAPSHOTS, classes: int = 2) -> str:
    """Every third node has no label at first, and a label changes in every third second of its node.

    ``flipped_from``: all labels from that second on are other ones.
    """
    rows = ["node,t,label"]
    for tau in range(SNAPSHOTS):
        for node in range(NODES):
            if (node + tau) % 3 == 0:
                label = (node // 2 + tau // 2 + (tau >= flipped_from)) % classes
                rows.append(f"{node},{tau + 0.5},{label}")
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
        file.write("\n".join(rows))
    atexit.register(Path(file.name).unlink)
    return file.name
