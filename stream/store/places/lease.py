"""A lease: the lock of a folder in a bucket, which no kernel takes from a dead process.

Its holder puts the lease object again, by If-Match, three times in ``lease_s``, a duration that the object names. A writer
that wants the lease watches the object by its own clock alone. If the object stays the same for the longer ``lease_s`` of the
two, its holder is gone, and the writer replaces it by If-Match. So no two clocks are ever compared. A holder that was paused
for longer may still believe that it has the lease. It does no harm, because every record is put under a name that must be
free, and every data file under a name that no other writer uses.
"""

import json
import math
import os
import secrets
import threading
import time
from functools import cache
from pathlib import Path

from freshet_graph.stream.store.errors import LaneBusyError, busy
from freshet_graph.stream.store.places.bucket import Bucket, ObjectStoreError, StaleError

CLOSE_S = 5.0
"""Longest wait of a release for a renewal without an answer."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

SILENT_S = 120.0
"""For so long after a process lost one lease by its silence, its other leases need not run out one after the other."""

BEATS = 3
"""Renewals within the time after which a silent holder loses its lease."""


class Lease:
    """Exclusive right to write into one folder of a bucket, until ``release`` or until the process falls silent.

    Attributes:
        lost: Why this process has lost the lease; None: it holds it.
    """

    why_both = "one of them was silent for longer than its lease. Run one stream job"
    """See ``Lock.why_both``."""

    def __init__(self, bucket: Bucket, key: str, writer_id: str, doing: str) -> None:
        """Take the lease; after a silent holder, this takes the longer ``lease_s`` of the two.

        Args:
            bucket: Of the folder.
            key: The lease's, in the folder of a log or lane.
            writer_id: Who takes it.
            doing: The holder's work on the folder, for sentences.

        Raises:
            LaneBusyError: Another writer holds it; the message names it.
            ObjectStoreError: The bucket refuses or does not answer.
        """
        self.lost: str | None = None
        self._bucket, self._key, self._writer_id, self._doing = bucket, key, writer_id, doing
        self._folder = f"{bucket.address}/{key.rpartition('/')[0]}"
        self._lease_s = bucket.address.lease_s
        self._boot = _boot()
        self._renewing = threading.Lock()
        self._etag = self._taken()
        self._require_conditions()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {self._folder}", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Check that the lease is still held, as far as this process knows without a request.

        Raises:
            LaneBusyError: Another writer has taken it, or may have.
        """
        if self.lost is None and now_s() - self._held_s > self._lease_s:
            self._renew()  # after a pause or a cut connection, this finds out what others did meanwhile
        if self.lost is not None:
            raise LaneBusyError(self.lost)

    def release(self) -> None:
        """Give the lease back, so that the next writer need not wait; doing so twice is harmless."""
        if self._ended.is_set():
            return
        self.fall_silent()
        if self.lost is None and not self._thread.is_alive():
            try:
                self._bucket.replace(self._key, b"{}\n", self._etag)
            except (StaleError, ObjectStoreError):
                return  # another writer has it by now; or no answer, and the next writer waits until it runs out

    def fall_silent(self) -> None:
        """Stop renewing without giving the lease back."""
        self._ended.set()
        self._thread.join(CLOSE_S)

    def _beat(self) -> None:
        while not self._ended.wait(self._lease_s / BEATS):
            try:
                self._renew()
            except ObjectStoreError:
                continue  # the next beat tries again; ``require`` checks how long it has been
            if self.lost is not None:
                return

    def _renew(self) -> None:
        with self._renewing:
            before_s = now_s()
            try:
                self._etag = self._bucket.replace(self._key, self._content(), self._etag)
                self._held_s = before_s
            except StaleError:
                self.lost = (
                    f"{self._folder} is being {self._doing} by {self._holder() or 'another writer'} now: {self._writer_id} was "
                    f"silent for longer than its lease of {self._lease_s:g} seconds. Stop one of the two"
                )

    def _taken(self) -> str:
        """The ETag of the lease once it is ours."""
        content = self._content()
        # A lease counts from its request, because its answer may take longer than others wait.
        self._held_s = now_s()
        try:
            return self._bucket.put_new(self._key, content)
        except FileExistsError:
            pass
        since_s, seen = now_s(), ""
        while True:
            try:
                raw, entry = self._bucket.read(self._key)
            except FileNotFoundError:  # removed with its lane just now
                return self._taken()
            holder = _read(raw)
            silent_s = now_s() - since_s if seen == entry.etag else 0.0
            is_silent = silent_s >= max(self._lease_s, _lease_s(holder))
            is_silent = is_silent or now_s() - _silent.get(_process(holder), -math.inf) < SILENT_S
            if not holder or is_silent or _is_gone(holder):
                self._held_s = now_s()
                try:
                    etag = self._bucket.replace(self._key, content, entry.etag)
                except StaleError:
                    raise self._busy(self._holder()) from None
                if is_silent:
                    _silent[_process(holder)] = now_s()
                return etag
            if (seen and seen != entry.etag) or _is_here(holder):
                raise self._busy(str(holder.get("writer", "")))
            seen = entry.etag
            time.sleep(min(1.0, self._lease_s / 10))

    def _require_conditions(self) -> None:
        """Check that the service honours conditional puts: some accept the put and ignore the condition."""
        for name in ("If-None-Match", "If-Match"):
            try:
                if name == "If-None-Match":
                    self._bucket.put_new(self._key, b"{}\n")
                else:
                    self._bucket.replace(self._key, b"{}\n", '"0"')
            except (FileExistsError, StaleError):
                continue
            raise ObjectStoreError(
                f"{self._bucket.address} ignores {name} on PUT, so two writers could overwrite each other. Use a "
                "service that supports conditional writes"
            )

    def _busy(self, holder: str) -> LaneBusyError:
        return busy(self._folder, self._doing, holder, "choose another store")

    def _holder(self) -> str:
        try:
            return str(_read(self._bucket.read(self._key)[0]).get("writer", ""))
        except OSError:
            return ""

    def _content(self) -> bytes:
        pid = os.getpid()
        said = {
            "writer": self._writer_id,
            "beat": secrets.token_hex(8),
            "lease_s": self._lease_s,
            "boot": self._boot,
            "pid": pid,
            "started": _started(pid),
        }
        return json.dumps(said, sort_keys=True).encode() + b"\n"


def now_s() -> float:
    """Seconds of a clock that also counts while the machine is suspended, if the system has one: leases run out meanwhile."""
    return time.clock_gettime(_CLOCK)


@cache
def _boot() -> str:
    """Identifies the running machine and its process namespace; random if the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(16)


_silent: dict[tuple[object, ...], float] = {}
"""When this process has last taken a lease from another one after its silence."""


def _process(holder: dict[str, object]) -> tuple[object, ...]:
    """What identifies the holder's process; unique if it does not say."""
    said = tuple(holder.get(key) for key in ("boot", "pid", "started"))
    return (object(),) if None in said else said


def _is_here(holder: dict[str, object]) -> bool:
    """Whether the holder is a live process of this machine."""
    pid = holder.get("pid")
    return holder.get("boot") == _boot() and isinstance(pid, int) and _started(pid) == holder.get("started")


def _is_gone(holder: dict[str, object]) -> bool:
    """Whether the holder was a process of this machine that has ended, so that its lease need not run out."""
    pid = holder.get("pid")
    if holder.get("boot") != _boot() or not isinstance(pid, int) or _is_here(holder):
        return False
    return _started(pid) is not None or not _lives(pid)


def _lease_s(holder: dict[str, object]) -> float:
    """How long the holder's lease lasts without a beat, seconds; 0 if it doesn't say, as in earlier releases."""
    said = holder.get("lease_s")
    return float(said) if isinstance(said, int | float) and math.isfinite(said) else 0.0


def _lives(pid: int) -> bool:
    """Whether a process of this machine lives, even if /proc hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read(raw: bytes) -> dict[str, object]:
    try:
        content = json.loads(raw)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _started(pid: int) -> str | None:
    """Start of a process of this machine, in the kernel's ticks; None: there is no such process.

    One that was killed and that its parent has not waited for is still listed, but "gone".
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "gone" if fields[0] in "ZX" else fields[19]
