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

A failure names the seed and the poll, which are enough to have it again: ``--only POLL``.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from numba.core.dispatcher import Dispatcher

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from hostile import Profile, profiles

from stream.decode.decoder import Decoder
from stream.microbatch import MicroBatch, RawBatch

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="Decode one poll, the number of which a failure named.")
    parser.add_argument("--rounds", type=int, default=1, help="How often the same messages are decoded.")
    parser.add_argument("--leak", type=float, default=16.0, help="Bytes a message that may stay.")
    parser.add_argument("--hold", type=int, default=0, help="Leak so many bytes a message, to see it found.")
    parser.add_argument("--growth", type=float, default=64.0, help="MiB that a warm process may grow.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    arguments = parser.parse_args()
    if arguments.only is not None:
        checked(arguments.seed, arguments.only, profiles(), Counter())
        return 0
    os.environ.update(COUNTED)
    context = multiprocessing.get_context("spawn")
    progress, result = context.Value("q", 0), context.SimpleQueue()
    told_of = (arguments.messages, arguments.rounds, arguments.hold, arguments.seed)
    child = context.Process(target=work, args=(*told_of, progress, result))
    started = time.monotonic()
    child.start()
    told: dict[str, Any] = {}
    while child.is_alive() or not result.empty():
        if result.empty():
            time.sleep(0.05)
        else:
            told |= result.get()
    child.join()
    told["seconds"] = time.monotonic() - started
    if child.exitcode != 0:
        told["failure"] = told.get("failure") or f"the process ended with {child.exitcode}"
        told["failure"] += f"; again: --seed {arguments.seed} --only {progress.value}"
    elif told["compiled"]:
        told["failure"] = f"compiled when warm: {', '.join(told['compiled'])}"
    elif told["leaked_bytes"] > arguments.leak * told["warm_messages"]:
        told["failure"] = (
            f"{told['leaked_bytes']:,} bytes of {told['warm_messages']:,} messages stayed, "
            f"at most {arguments.leak:g} a message"
        )
    elif told["rss_end_mib"] - told["rss_warm_mib"] > arguments.growth:
        grown = told["rss_end_mib"] - told["rss_warm_mib"]
        told["failure"] = f"memory grew by {grown:.0f} MiB after the warm-up, at most {arguments.growth:.0f}"
    print(json.dumps(told)) if arguments.json else show(told)
    return 1 if told.get("failure") else 0


def work(messages: int, rounds: int, held: int, seed: int, progress: Any, result: Any) -> None:
    """Decode so many messages so many times; tells counts and memory."""
    process, kinds = psutil.Process(), profiles()
    counts: Counter[str] = Counter()
    warm_after = messages * (rounds - 1 or WARM_SHARE)
    warm: dict[str, Any] = {}
    kept: list[bytearray] = []
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
                checked(seed, progress.value, kinds, counts)
                kept += [bytearray(held) for _ in range(counts["messages"] - before)] if held else []
                progress.value += 1
                if progress.value % 50 == 0 or not begun_mib:
                    now_mib = process.memory_info().rss / 2**20
                    begun_mib, most_mib = begun_mib or now_mib, max(most_mib, now_mib)
            polls = progress.value
    except Unsound as finding:
        result.put({"failure": str(finding)})
        raise SystemExit(1) from finding
    leaked_bytes, kernels = in_use() - warm["bytes"], compiled()
    result.put(
        {
            "counts": dict(counts),
            "rss_begin_mib": begun_mib,
            "rss_warm_mib": warm_mib,
            "rss_most_mib": most_mib,
            "rss_end_mib": process.memory_info().rss / 2**20,
            "warm_messages": counts["messages"] - warm["messages"],
            "leaked_bytes": leaked_bytes,
            "compiled": sorted(
                name for name, kinds in kernels.items() if kinds > warm["kernels"].get(name, 0)
            ),
        }
    )


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
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


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


def show(told: dict[str, Any]) -> None:
    counts = told.get("counts", {})
    if counts:
        total, seconds = counts["messages"], told["seconds"]
        print(
            f"{total:,} messages ({counts['bytes'] / 2**20:,.0f} MiB) in {seconds:,.0f} s, made and checked"
        )
        print(f"  decoded at {total / counts['decode_us'] * 1e6:,.0f} messages/s of one core")
        for name in ("taken, whole or in part", "refused, whole", "tombstones"):
            print(f"  {name:<44}{counts[name]:>12,}")
        print(f"  {'events accepted':<44}{counts['events']:>12,}")
        for group, title in (("reason", "rejects (rows of Arrow messages are one each)"), ("kind", "sent")):
            print(f"  {title}:")
            for name, number in sorted(counts.items(), key=lambda entry: -entry[1]):
                if name.startswith(f"{group} "):
                    print(f"    {name.removeprefix(group + ' '):<42}{number:>12,}")
        memory = {key[4:-4]: told[key] for key in told if key.startswith("rss_")}
        leaked = told["leaked_bytes"] / told["warm_messages"]
        print(f"  stayed allocated once warm: {leaked:.2f} bytes a message")
        print(f"  RSS, MiB: {', '.join(f'{name} {value:.0f}' for name, value in memory.items())}")
    print(f"FAILED: {told['failure']}" if told.get("failure") else "no crash, nothing lost, memory flat")


if __name__ == "__main__":
    sys.exit(main())
