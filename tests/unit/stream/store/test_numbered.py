"""Numbered items: dropped ones leave the memory, the others keep their numbers."""

import gc
import weakref

import pytest

from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.files.records import Numbered


class Item:
    def __init__(self, number: int) -> None:
        self.number = number


def numbered(stored: int, appended: int) -> tuple[Numbered[Item], "list[weakref.ref[Item]]"]:
    """Items number 2, 3 …, of which the first are read on demand; and references to all, which do not keep them."""
    alive: dict[int, weakref.ref[Item]] = {}

    def load(number: int) -> Item:
        item = Item(number)
        alive[number] = weakref.ref(item)
        return item

    there: Numbered[Item] = Numbered("item", 2, stored, load)
    for number in range(2 + stored, 2 + stored + appended):
        there.append(load(number))
    assert [item.number for item in there] == list(range(2, 2 + stored + appended))
    return there, [alive[number] for number in sorted(alive)]


@pytest.mark.parametrize(("stored", "appended"), [(0, 8), (8, 0), (4, 4)])
@pytest.mark.parametrize("first", [3, 5, 6, 8, 10, 99])
def test_dropped_items_are_freed_and_the_others_keep_their_numbers(
    stored: int, appended: int, first: int
) -> None:
    there, references = numbered(stored, appended)
    there.drop_before(first)
    gc.collect()
    kept = min(first, 10)
    assert [number for number, item in enumerate(references, 2) if item() is not None] == list(
        range(kept, 10)
    )
    assert (there.first, len(there), bool(there)) == (kept, 10, kept < 10)
    assert [item.number for item in there] == [item.number for item in there[:]] == list(range(kept, 10))
    with pytest.raises(RetainedError, match=f"item number {kept - 1} is no longer kept"):
        there[kept - 1]
    there.append(Item(10))
    there.drop_before(4)
    assert (there[10].number, there[-1].number, there.first) == (10, 10, max(kept, 4))
