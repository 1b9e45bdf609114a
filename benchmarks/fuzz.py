"""Hostile messages against the decoder: python benchmarks/fuzz.py [--messages 1000000] [--seed 1] [--rounds 1].

Four topics (JSON and Arrow, ids of both kinds) get random, cut, mutated, forged and swollen messages with valid ones among
them (``tests/support/hostile.py``), in polls of different sizes, inside a process of its own. What must hold, or it exits 1:

- the process lives, and no poll raises;
- every message ends as events, as rejects with a reason and a sentence, or as a counted tombstone, and accepted events are sound;
- memory is flat: once warm, what is allocated doesn't grow by more than ``--leak`` bytes a message, and the process by
  no more than ``--growth`` MiB;
- no kernel is compiled once warm: a poll's content must not change the type of anything that a kernel takes.

Python and Arrow allocate from the C library there, whose count of bytes in use is exact. What a process has of the
system beyond that are free pages of its allocators; they vary by tens of MiB with the sizes of polls. Warm means a
tenth of the messages, or with ``--rounds`` all of them before the last round, which decodes the same ones again.

Printed are counts and memory as JSON. A failure names the seed and the poll, which are enough to have it again: ``--only POLL``.
"""

import ctypes
import gc
import json
import multiprocessing
import sys
import time
from collections import Counter
from typing import Any

import harness
import numpy as np
import psutil
import pyarrow as pa
from hostile import Profile, profiles
from numba.core.dispatcher import Dispatcher

from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.microbatch import MicroBatch, RawBatch

POLLS = (1, 7, 100, 1_000)
"""Sizes of polls: a message alone, and among many that are decoded together."""
WARM_SHARE = 0.1
"""Of the messages after which memory must be flat."""


COUNTED = {
    "PYTHONMALLOC": "malloc",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
"""Have everything allocated by the C library, and nothing that was freed counted as in use."""


class Unsound(Exception):  # noqa: N818  a finding
    """What must hold of a decoded poll does not."""


def main() -> None:
    given = harness.options(
        __doc__, quiet=True, messages=1_000_000, seed=1, only={"type": int}, rounds=1, leak=16.0, hold=0, growth=64.0
    )  # fmt: skip
    if given.only is not None:
        checked(given.seed, given.only, profiles(), Counter())
        return
    progress = multiprocessing.get_context("spawn").Value("q", 0)
    began = time.monotonic()
    process, receiver = harness.started(work, given, progress, **COUNTED)
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        found = {"failure": f"the process ended with {process.exitcode}"}
    found["seconds"] = time.monotonic() - began
    if "failure" in found:
        found["failure"] += f"; again: --seed {given.seed} --only {progress.value}"
    elif found["compiled"]:
        found["failure"] = f"compiled when warm: {', '.join(found['compiled'])}"
    elif found["leaked_bytes"] > given.leak * found["warm_messages"]:
        stayed = f"{found['leaked_bytes']:,} bytes of {found['warm_messages']:,} messages stayed"
        found["failure"] = f"{stayed}, at most {given.leak:g} a message"
    elif (grown := found["rss_end_mib"] - found["rss_warm_mib"]) > given.growth:
        found["failure"] = f"memory grew by {grown:.0f} MiB after the warm-up, at most {given.growth:.0f}"
    print(json.dumps(found))
    sys.exit(1 if found.get("failure") else 0)


def work(given: Any, progress: Any) -> dict[str, Any]:
    """Decode so many messages so many times; counts and memory."""
    messages, rounds, held = given.messages, given.rounds, given.hold
    process, kinds = psutil.Process(), profiles()
    counts: Counter[str] = Counter()
    warm_after = messages * (rounds - 1 or WARM_SHARE)
    warm: dict[str, Any] = {}
    leaked: list[bytearray] = []
    begun_mib = most_mib = warm_mib = 0.0
    polls = 0
    try:
        for turn in range(rounds):
            progress.value = 0
            while progress.value < polls if turn else counts["messages"] < messages:
                if not warm and counts["messages"] >= warm_after:
                    warm = {"messages": counts["messages"], "kernels": compiled()}
                    warm["bytes"] = in_use()
                    warm_mib = max(most_mib, process.memory_info().rss / 2**20)
                before = counts["messages"]
                checked(given.seed, progress.value, kinds, counts)
                leaked += [bytearray(held) for _ in range(counts["messages"] - before)] if held else []
                progress.value += 1
                if progress.value % 50 == 0 or not begun_mib:
                    now_mib = process.memory_info().rss / 2**20
                    begun_mib, most_mib = begun_mib or now_mib, max(most_mib, now_mib)
            polls = progress.value
    except Unsound as finding:
        return {"failure": str(finding)}
    leaked_bytes, kernels = in_use() - warm["bytes"], compiled()
    again = [name for name, kinds in kernels.items() if kinds > warm["kernels"].get(name, 0)]
    return {
        "counts": dict(counts),
        "rss_begin_mib": begun_mib,
        "rss_warm_mib": warm_mib,
        "rss_most_mib": most_mib,
        "rss_end_mib": process.memory_info().rss / 2**20,
        "warm_messages": counts["messages"] - warm["messages"],
        "leaked_bytes": leaked_bytes,
        "held": len(leaked),
        "compiled": sorted(again),
    }


class Mallinfo2(ctypes.Structure):
    """What glibc counts, over all its arenas: ``uordblks`` bytes in use, ``hblkhd`` bytes mapped one by one."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def in_use() -> int:
    """Bytes that are allocated and not freed."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def compiled() -> dict[str, int]:
    """How many kinds of arguments each kernel is compiled for."""
    kernels = (found for found in gc.get_objects() if issubclass(type(found), Dispatcher))
    return {f"{k.py_func.__module__}.{k.py_func.__name__}": len(k.signatures) for k in kernels}


def checked(seed: int, poll: int, kinds: list[Profile], counts: Counter[str]) -> None:
    """Make, decode and check one poll, a pure function of seed and number."""
    rng = np.random.default_rng([seed, poll])
    profile, size = kinds[poll % len(kinds)], int(rng.choice(POLLS))
    sent = list(profile.messages(rng, size))
    offsets = np.cumsum(rng.integers(1, 3, size))
    values = pa.array([message for _, message in sent], pa.large_binary())
    raw = RawBatch("fuzz", 0, int(offsets[0]), int(offsets[-1]) + 1, 1 << 40, pa.array(offsets), values)
    started = time.process_time()
    try:
        batches = list(Decoder(profile.topic, profile.config).batches(raw))
    except Exception as error:
        raise Unsound(f"{profile.name}: {type(error).__name__}: {error}") from error
    counts["decode_us"] += round((time.process_time() - started) * 1e6)
    count(counts, sent, offsets, batches, profile.name)


def count(
    counts: Counter[str],
    sent: list[tuple[str, bytes | None]],
    offsets: np.ndarray,
    batches: list[MicroBatch],
    name: str,
) -> None:
    """Check that every message of a poll ended somewhere, and count where."""
    events = pa.Table.from_batches([batch.events for batch in batches])
    rejects = pa.Table.from_batches([batch.rejects for batch in batches])
    events.validate(full=True)
    rejects.validate(full=True)
    taken, refused = set(events["offset"].to_pylist()), set(rejects["offset"].to_pylist())
    tombstones = sum(message is None for _, message in sent)
    counted = sum(batch.tombstones for batch in batches)
    if counted != tombstones:
        raise Unsound(f"{name}: {counted} tombstones counted, {tombstones} sent")
    if [batch.end_offset for batch in batches[:-1]] != [batch.first_offset for batch in batches[1:]]:
        raise Unsound(f"{name}: the parts of a poll leave offsets out")
    for (kind, message), offset in zip(sent, offsets.tolist(), strict=True):
        if (message is not None) != (offset in taken or offset in refused):
            raise Unsound(f"{name}: a message of kind {kind!r} ended nowhere, or in two places")
        if kind.startswith("valid") and offset in refused:
            raise Unsound(f"{name}: a message of kind {kind!r} was refused")
    if not all(rejects["sentence"].to_pylist()):
        raise Unsound(f"{name}: a reject without a sentence")
    counts["messages"] += len(sent)
    counts["bytes"] += sum(len(message or b"") for _, message in sent)
    counts["tombstones"] += tombstones
    counts["taken, whole or in part"] += len(taken)
    counts["refused, whole"] += len(refused - taken)
    counts["events"] += len(events)
    counts.update(f"kind {name.split(',', maxsplit=1)[0]}: {kind}" for kind, _ in sent)
    counts.update(f"reason {reason}" for reason in rejects["reason"].to_pylist())


if __name__ == "__main__":
    main()
