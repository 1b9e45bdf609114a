"""The data files of one commit in a bucket: written on this machine first, then put under names used only once."""

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
    """Files put under their final names at once, with a token in every name instead of a rename.

    A writer that was shut out, or a request that arrives after it was given up, does no harm: no record names its files.
    ``finish`` puts all files at once. The sweep removes the rest of an error or a crash once its writer is shut out.
    """

    def __init__(self, root: "ObjectPath", token: str | None = None) -> None:
        """Begin in the folder of a log or lane; for ``token`` see ``Place.stage``."""
        self._place = root
        self._token = secrets.token_hex(6) if token is None else token
        self._cache = cache_of(root)
        self._files: list[tuple[ObjectPath, Path, str]] = []

    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file on this machine's disk; see ``Staging.add``."""
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
            ObjectStoreError: The bucket refuses or does not answer.
        """
        if not self._files:
            return
        crash_point("file.synced")
        with ThreadPoolExecutor(min(SYNC_THREADS, len(self._files))) as pool:
            list(pool.map(self._put, self._files))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove the files on this machine. No record names those already in the bucket; they are swept later."""
        for _, scratch, _ in self._files:
            scratch.unlink(missing_ok=True)

    def _put(self, file: "tuple[ObjectPath, Path, str]") -> None:
        place, scratch, digest = file
        place.bucket.put(place.key, scratch)
        crash_point("file.renamed")
        self._cache.adopt(scratch, place, digest)
