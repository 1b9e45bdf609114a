"""SipHash's kernel against its twin in plain integers, and that against the authors' own numbers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.snapshots.string_dictionary import new_key, siphash

MASK = 2**64 - 1


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & MASK


def rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & MASK
        v[1] = rotated(v[1], 13) ^ v[0]
        v[0] = rotated(v[0], 32)
        v[2] = (v[2] + v[3]) & MASK
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & MASK
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & MASK
        v[1] = rotated(v[1], 17) ^ v[2]
        v[2] = rotated(v[2], 32)


def twin(text: bytes, key: tuple[int, int], *, each: int, last: int, wide: bool) -> tuple[int, ...]:
    """SipHash-each-last, 64 or 128 bits."""
    v = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    v = [v[0] ^ key[0], v[1] ^ key[1] ^ (0xEE if wide else 0), v[2] ^ key[0], v[3] ^ key[1]]
    padded = text + b"\0" * (7 - len(text) % 8) + bytes([len(text) & 0xFF])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        rounds(v, each)
        v[0] ^= word
    v[2] ^= 0xEE if wide else 0xFF
    rounds(v, last)
    words = [v[0] ^ v[1] ^ v[2] ^ v[3]]
    if wide:
        v[1] ^= 0xDD
        rounds(v, last)
        words.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return tuple(words)


def test_the_twin_gives_the_published_numbers_of_siphash_2_4():
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    assert twin(b"", key, each=2, last=4, wide=False) == (0x726FDB47DD0E0E31,)
    assert twin(bytes(range(15)), key, each=2, last=4, wide=False) == (0xA129CA6149BE45E5,)
    first, second = twin(b"", key, each=2, last=4, wide=True)
    assert (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex() == (
        "a3817f04ba25a8e66df67214c7550293"
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 9))
def test_the_kernel_equals_its_twin_wherever_a_text_stands(text, first):
    key = new_key()
    data = np.frombuffer(b"\xff" * first + text + b"\xff" * 9, np.uint8)
    words = tuple(int(word) for word in siphash(data, first, len(text), key))
    assert words == twin(text, (int(key[0]), int(key[1])), each=1, last=3, wide=True)
