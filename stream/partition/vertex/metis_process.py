"""The program that runs METIS: requests on standard input, answers on standard output.

METIS draws from one generator per process, takes over SIGTERM and SIGABRT while it runs and writes to standard output, and its
binding holds the interpreter for the whole run. So it has its own process, which ``freshet_graph.stream.partition.vertex.metis``
starts and asks; nothing but numpy and pymetis is imported here.

A request is int64 ``[nodes, entries, parts, seed, recursive, tries, node weights?, edge weights?]``, then int64 arrays:
row starts (nodes + 1), neighbours (entries), node weights (nodes) and edge weights (entries) if the header has a 1. The answer
is int64 ``[0]`` and the parts (nodes), or ``[n]`` and n bytes of text: why METIS failed.
"""

import os
import sys
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

HEADER = 8


def receive(stream: BinaryIO, count: int) -> NDArray[np.int64] | None:
    """The next ``count`` int64 values; None if the other side has ended."""
    values = np.empty(count, np.int64)
    filled, view = 0, values.view(np.uint8).data
    while filled < len(view):
        got = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # of every buffered stream
        if not got:
            return None
        filled += got
    return values


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until their end."""
    import pymetis

    while (header := receive(requests, HEADER)) is not None:
        nodes, entries, parts, seed, recursive, tries, has_node_weights, has_edge_weights = header.tolist()
        starts, neighbours = receive(requests, nodes + 1), receive(requests, entries)
        node_weights = receive(requests, nodes) if has_node_weights else None
        edge_weights = receive(requests, entries) if has_edge_weights else None
        if starts is None or neighbours is None:
            return
        try:
            partition = pymetis.part_graph(
                parts,
                pymetis.CSRAdjacency(starts, neighbours),
                vweights=node_weights,
                eweights=edge_weights,
                recursive=bool(recursive),
                options=pymetis.Options(seed=seed, ncuts=tries),
            )
        except (RuntimeError, MemoryError) as error:
            text = f"METIS: {error}".encode()
            answers.write(np.array([len(text)], np.int64).tobytes() + text)
        else:
            answers.write(np.concatenate([[0], np.asarray(partition.vertex_part, np.int64)]).tobytes())
        answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # METIS's own output would be taken for an answer
        serve(sys.stdin.buffer, answers)
