"""JSON messages that nobody should send."""

import json
from typing import Any

import numpy as np
from hostile_draws import FIELDS, HOSTILE_NUMBERS, T0, Make, any_of, mutate, random_bytes

from freshet_graph.schemas.events import IdKind


def json_makers(ids: IdKind) -> dict[str, Make]:
    def valid(rng: np.random.Generator) -> bytes:
        return json.dumps(_event(rng, ids)).encode()

    def mutated(rng: np.random.Generator) -> bytes:
        return mutate(rng, valid(rng))

    def truncated(rng: np.random.Generator) -> bytes:
        whole = valid(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    def other_value(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        event[any_of(rng, FIELDS)] = _value(rng, 3)
        return json.dumps(event).encode()

    def number(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        event[any_of(rng, FIELDS)] = "@"
        return json.dumps(event).replace('"@"', any_of(rng, HOSTILE_NUMBERS)).encode()

    def long(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        size = int(10 ** rng.uniform(1, 4.5))
        field = any_of(rng, FIELDS)
        event[field] = [_value(rng, 0)] * min(size, 3_000) if rng.random() < 0.5 else "é" * size
        return json.dumps(event, ensure_ascii=bool(rng.integers(2))).encode()

    def twice(rng: np.random.Generator) -> bytes:
        text = valid(rng)
        extra = json.dumps({any_of(rng, FIELDS): _value(rng, 1)}).encode()
        return text[:-1] + b", " + extra[1:]

    def characters(rng: np.random.Generator) -> bytes:
        wrong = any_of(
            rng, (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\\ud800", b"\\u0000", b"\\", b"\n")
        )
        whole = valid(rng)
        at = int(rng.integers(0, len(whole)))
        return whole[:at] + wrong + whole[at:]

    def framed(rng: np.random.Generator) -> bytes:
        whole = valid(rng)
        return any_of(
            rng,
            (
                b"\xef\xbb\xbf" + whole,
                whole + whole,
                b"[" + whole + b"]",
                whole + b"\x00",
                b" \t\r\n" + whole,
            ),
        )

    return {
        "valid": valid, "random bytes": random_bytes, "truncated": truncated, "mutated": mutated,
        "deep nesting": lambda rng: _deep(rng, valid(rng)), "hostile number": number, "other value": other_value,
        "long": long, "key twice": twice, "wrong characters": characters, "wrongly framed": framed,
        "tombstone": lambda rng: None,
    }  # fmt: skip


def _event(rng: np.random.Generator, ids: IdKind) -> dict[str, Any]:
    def node() -> int | str:
        number = int(rng.integers(0, 1000))
        return number if ids == "int" else f"n{number}"

    event: dict[str, Any] = {"t": T0 + int(rng.integers(0, 10_000_000))}
    if rng.random() < 0.2:
        return event | {"node": node(), "features": rng.random(4).round(3).tolist()}
    event |= {"src": node(), "dst": node()}
    if rng.random() < 0.3:
        event |= {"features": rng.random(2).round(3).tolist(), "weight": float(rng.random().__round__(3))}
    if rng.random() < 0.2:
        event |= {"op": "delete"}
    if rng.random() < 0.2:
        event |= {"label": int(rng.integers(-5, 5)), "event_id": f"e{rng.integers(1 << 40)}"}
    return event


def _value(rng: np.random.Generator, depth: int) -> Any:
    choice = int(rng.integers(0, 9 if depth else 7))
    if choice == 7:
        return [_value(rng, depth - 1) for _ in range(int(rng.integers(0, 5)))]
    if choice == 8:
        return {any_of(rng, FIELDS): _value(rng, depth - 1) for _ in range(int(rng.integers(0, 4)))}
    return (None, True, False, "", "text", int(rng.integers(-(2**62), 2**62)), float(rng.standard_normal()))[
        choice
    ]


def _deep(rng: np.random.Generator, valid: bytes) -> bytes:
    depth = int(10 ** rng.uniform(1.5, 4.3))
    opening, closing = any_of(rng, ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"src":', b"}]")))
    closed = closing * depth if rng.random() < 0.7 else b""
    nested = opening * depth + b"1" + closed
    return nested if rng.random() < 0.3 else valid[:-1] + b', "x": ' + nested + b"}"
