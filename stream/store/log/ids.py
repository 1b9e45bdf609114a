"""External ids by dense id: those in an index, then those of each later snapshot."""

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import id_type, node_schema
from freshet_graph.schemas.store import FileRef, LogHeader, SealedSnapshot
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.log.commits import CommitChain
from freshet_graph.stream.store.places.place import Place

MOST_FILES = 256
"""Files of single snapshots before their ids are put together in memory: a process may map some 65,000 at once."""


class ExternalIds:
    """The ids of a log up to the commits that its chain has seen.

    Args:
        root: The log's folder.
        header: Its header.
        chain: Its commits; refreshed if files that it names are gone.
    """

    def __init__(self, root: Place, header: LogHeader, chain: CommitChain) -> None:
        self._root, self._header, self._chain = root, header, chain
        self._indexed: dict[str, list[pa.Array]] = {}  # by path, the files of the newest index that was read
        self._index = -1  # its number
        self._ids: list[pa.Array] = []
        self._snapshots = 0  # number of the first snapshot whose ids are missing here

    def all(self) -> pa.ChunkedArray:
        """External ids of all dense ones, shape (num_nodes,), in dense order.

        Those in files of the newest index, and of up to ``MOST_FILES`` snapshots after it, are mapped and not copied.

        Raises:
            CorruptError: A file doesn't match its record.
        """
        self._chain.undisturbed(self._read)
        return pa.chunked_array(self._ids, id_type(self._header.ids))

    def of(self, nodes: Int64) -> pa.Array:
        """External ids of dense ones, shape (n,), in their order. Only these are copied, raises as ``all``."""
        pieces = self.all().chunks
        ends = np.cumsum([len(piece) for piece in pieces])
        of = np.searchsorted(ends, nodes, side="right")
        order = np.argsort(of, kind="stable")
        taken = [pa.array([], id_type(self._header.ids))]
        for rows in np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(nodes) else []:
            piece = int(of[rows[0]])
            taken.append(pieces[piece].take(pa.array(nodes[rows] - ends[piece] + len(pieces[piece]))))
        return pa.concat_arrays(taken).take(pa.array(np.argsort(order)))

    def _read(self) -> None:
        index, sealed = self._chain.index, self._chain.sealed
        if index is not None and index.number != self._index:  # few files instead of one per snapshot
            known = self._indexed
            self._indexed = {
                file.path: known.get(file.path) or indexed_ids(self._root, self._header, file)
                for file in index.ids
            }
            self._ids = [piece for pieces in self._indexed.values() for piece in pieces]
            self._index, self._snapshots = index.number, index.end
        for number in range(self._snapshots, len(sealed)):
            self._ids.extend(read_nodes(self._root, self._header, sealed[number])["id"].chunks)
            self._snapshots = number + 1
            indexed = sum(len(pieces) for pieces in self._indexed.values())
            if len(self._ids) > indexed + MOST_FILES:
                self._ids[indexed:] = [pa.concat_arrays(self._ids[indexed:])]


def read_nodes(root: Place, header: LogHeader, snapshot: SealedSnapshot) -> pa.Table:
    """The verified ``nodes.arrow`` of one snapshot of the log in folder ``root``."""
    return read_table(root, snapshot.nodes, schema=node_schema(header.ids))


def indexed_ids(root: Place, header: LogHeader, file: FileRef) -> list[pa.Array]:
    """The verified external ids in one file of an index of the log in folder ``root``."""
    schema = pa.schema([node_schema(header.ids).field("id")])
    chunks: list[pa.Array] = read_table(root, file, schema=schema)["id"].chunks
    return chunks
