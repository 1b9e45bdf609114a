"""External ids by dense id: those in an index, then those of each later snapshot."""

from collections.abc import Iterator

import pyarrow as pa

from schemas.events import id_type, node_schema
from schemas.store import LogHeader, LogIndex, SealedSnapshot
from stream.store.files.data import read_table
from stream.store.log.commits import CommitChain
from stream.store.places.place import Place


class ExternalIds:
    """The ids of a log up to the commits that its chain has seen.

    Args:
        root: The log's folder.
        header: Its header.
        chain: Its commits; refreshed if files that it names are gone.
    """

    def __init__(self, root: Place, header: LogHeader, chain: CommitChain) -> None:
        self._root, self._header, self._chain = root, header, chain
        self._ids: list[pa.Array] = []
        self._snapshots = 0  # number of the first snapshot whose ids are missing here

    def all(self) -> pa.Array:
        """External ids of all dense ones, shape (num_nodes,), in dense order.

        Raises:
            CorruptError: A file doesn't match its record.
        """
        if len(self.pieces()) != 1:
            self._ids = [pa.concat_arrays([pa.array([], id_type(self._header.ids)), *self._ids])]
        return self._ids[0]

    def pieces(self) -> list[pa.Array]:
        """The same in pieces, mapped where possible; read-only."""
        self._chain.undisturbed(self._take)
        return self._ids

    def _take(self) -> None:
        index, sealed = self._chain.index, self._chain.sealed
        if index is not None and self._snapshots < max(index.first, 1):
            self._ids, self._snapshots = list(indexed_ids(self._root, self._header, index)), index.end
        for number in range(self._snapshots, len(sealed)):
            self._ids.extend(read_nodes(self._root, self._header, sealed[number])["id"].chunks)
            self._snapshots = number + 1


def read_nodes(root: Place, header: LogHeader, snapshot: SealedSnapshot) -> pa.Table:
    """The verified ``nodes.arrow`` of one snapshot of the log in folder ``root``."""
    return read_table(root, snapshot.nodes, schema=node_schema(header.ids))


def indexed_ids(root: Place, header: LogHeader, index: LogIndex) -> Iterator[pa.Array]:
    """External ids of the dense ones in use after an index's commit, in dense order, file by file."""
    schema = pa.schema([node_schema(header.ids).field("id")])
    for reference in index.ids:
        yield from read_table(root, reference, schema=schema)["id"].chunks
