"""Items with a fixed number: the first ones may be gone, the others are read on demand."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, overload

from stream.store.errors import RetainedError

T = TypeVar("T")

CACHED = 4096
"""Most items read on demand that stay in memory."""


class Numbered(Generic[T]):
    """Items number ``first`` to ``len − 1``; an item keeps its number when older ones are dropped.

    Indexing and slicing take numbers (negative ones count from the end), iteration yields the kept items. ``len`` is the
    number of the next item, so it counts dropped ones too.

    Args:
        what: The name of an item, for sentences.
        first: Number of the oldest item kept.
        stored: How many of them ``load`` can read.
        load: Reads the item of a number.
    """

    def __init__(
        self, what: str, first: int = 0, stored: int = 0, load: Callable[[int], T] | None = None
    ) -> None:
        self.first = first
        self._what = what
        self._load = load
        self._loaded_end = first + stored
        self._cache: dict[int, T] = {}
        self._new: list[T] = []

    def append(self, item: T) -> None:
        """Add the next item."""
        self._new.append(item)

    def drop_before(self, first: int) -> None:
        """Forget the items before number ``first``, and free them."""
        self.first = max(self.first, min(first, len(self)))
        for number in [number for number in self._cache if number < self.first]:
            del self._cache[number]
        passed = self.first - self._loaded_end
        if passed > 0:
            del self._new[:passed]
            self._loaded_end = self.first

    def __len__(self) -> int:
        return self._loaded_end + len(self._new)

    def __bool__(self) -> bool:
        return len(self) > self.first

    def __iter__(self) -> Iterator[T]:
        return self._kept(range(self.first, len(self)))

    def __reversed__(self) -> Iterator[T]:
        return self._kept(range(len(self) - 1, self.first - 1, -1))

    @overload
    def __getitem__(self, key: int) -> T: ...

    @overload
    def __getitem__(self, key: slice) -> list[T]: ...

    def __getitem__(self, key: int | slice) -> T | list[T]:
        """An item by number, or the kept items in a range of numbers.

        Raises:
            RetainedError: The item is no longer kept; the message names the first kept one. For a range: an item was
                dropped since ``first`` was read, because a list with a hole would pass for the whole.
            IndexError: The item does not exist yet.
        """
        if isinstance(key, slice):
            return [self._item(number) for number in range(*key.indices(len(self))) if number >= self.first]
        number = key + len(self) if key < 0 else key
        if not 0 <= number < len(self):
            raise IndexError(f"there is no {self._what} number {key}, there are {len(self)}")
        if number < self.first:
            raise RetainedError(
                f"{self._what} number {number} is no longer kept. A reader can start from number {self.first}"
            )
        return self._item(number)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Numbered) else other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _kept(self, numbers: range) -> Iterator[T]:
        """The items of a range without those dropped before or during the iteration."""
        for number in numbers:
            if number < self.first:
                continue
            try:
                item = self._item(number)
            except RetainedError:
                continue
            yield item

    def _item(self, number: int) -> T:
        if number >= self._loaded_end:
            return self._new[number - self._loaded_end]
        if number not in self._cache:
            assert self._load is not None
            if len(self._cache) >= CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[number] = self._load(number)
        return self._cache[number]
