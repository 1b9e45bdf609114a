"""The data files of one commit in a bucket: written on this machine first, then put under names that nobody else uses."""

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.store import FileRef
from stream.store.crash import crash_point
from stream.store.places.cache import cache_of
from stream.store.places.names import inside, with_token
from stream.store.places.staging import SYNC_THREADS, Staging, Write
from stream.store.places.write_out import WriteOut

if TYPE_CHECKING:
    from stream.store.places.object_path import ObjectPath


class BucketStaging(Staging):
    """Put under final names at once, with a token in every name instead of a rename.

    A writer that was shut out, and a request that was given up and arrives all the same, can so harm nobody: no record names
    what they put. ``finish`` puts all files at once; what an error or a crash leaves is swept once its writer is shut out.
    """

    def __init__(self, root: "ObjectPath", token: str | None = None) -> None:
        """Begin.

        Args:
            root: Folder of the log or lane.
            token: Part of the names; None: a new one, empty: none, for files that no record names.
        """
        self._place = root
        self._token = secrets.token_hex(6) if token is None else token
        self._cache = cache_of(root)
        self._files: list[tuple[ObjectPath, Path, str]] = []

    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file on this machine's disk.

        Raises:
            OSError: The disk refuses.
        """
        named = with_token(relative, self._token) if self._token else relative
        place = inside(self._place, named)
        scratch = self._cache.scratch()
        self._files.append((place, scratch, ""))
        with WriteOut(scratch) as sink:
            write(sink.native())
        size, digest = sink.bytes, sink.checksum
        self._files[-1] = place, scratch, digest
        crash_point("file.torn", lambda: os.truncate(scratch, size // 2))
        crash_point("file.written")
        return FileRef(path=named, bytes=size, checksum=digest)

    def finish(self) -> None:
        """Put all files into the bucket, and keep them as copies.

        Raises:
            OSError: The bucket refuses, or nobody answers.
        """
        if not self._files:
            return
        crash_point("file.synced")
        with ThreadPoolExecutor(min(SYNC_THREADS, len(self._files))) as pool:
            list(pool.map(self._put, self._files))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove what was written on this machine; what is in the bucket already is nobody's, and swept later."""
        for _, scratch, _ in self._files:
            scratch.unlink(missing_ok=True)

    def _put(self, file: "tuple[ObjectPath, Path, str]") -> None:
        place, scratch, digest = file
        place.bucket.put(place.key, scratch)
        crash_point("file.renamed")
        self._cache.adopt(scratch, place, digest)
