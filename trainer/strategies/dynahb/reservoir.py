"""The reservoir of hybrid batches: used again or made again, and the threads that make them (DynaHB, 5.2).

Draws never depend on time: a ``Reservoir`` knows recipes only, from which a batch follows. A ``BatchGenerator`` keeps as
many batches as its budget of bytes allows, and makes the others ahead of their use.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import astuple
from typing import Any

import numpy as np

from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.strategies.dynahb.batches import HybridBatch, Recipe

LOOK_S = 1.0
"""Interval of heartbeats during a wait."""


class Reservoir:
    """Recipes by size; a batch is used again with probability (batches of its size) / capacity, equation 4.

    A share of the batches contains the newest examples. Their recipes are dropped with the snapshot, because its examples
    changes afterwards (it is then whole, with nothing held out).

    Args:
        sizes: Shares of snapshots and of vertices of each size.
        newest_share: Of batches that must contain the newest examples.
        refresh: Share of former recipes that a snapshot drops.
    """

    def __init__(self, sizes: Sequence[tuple[float, float]], newest_share: float, refresh: float) -> None:
        self._sizes, self._newest_share, self._refresh = sizes, newest_share, refresh
        self._pools: dict[tuple[int, bool], list[Recipe]] = {}
        self._drawn = 0
        self.begin()

    def begin(self) -> None:
        """Forget all recipes."""
        self._pools = {(size, newest): [] for size in range(len(self._sizes)) for newest in (False, True)}

    def slide(self, taus: Sequence[int], generator: np.random.Generator) -> None:
        """Move to other snapshots, the newest examples' last: drop older recipes, and a share of the rest.

        Recipes with the former newest examples are dropped, too.
        """
        for (_, newest), pool in self._pools.items():
            pool[:] = (
                []
                if newest
                else [recipe for recipe in pool if recipe.first >= taus[0] and recipe.until < taus[-2]]
            )
            num_kept = len(pool) - round(self._refresh * len(pool))
            pool[:] = [pool[place] for place in np.sort(generator.permutation(len(pool))[:num_kept])]

    def draw(self, size: int, taus: Sequence[int], generator: np.random.Generator) -> tuple[Recipe, bool]:
        """The next batch of a size.

        Args:
            size: Its number.
            taus: Interval indices, ascending, at least two: the last one is the newest examples's.
            generator: Draws.

        Returns:
            Its recipe, and whether it is a former one.
        """
        newest = bool(generator.random() < self._newest_share)
        pool, again = self._pools[size, newest], generator.random()
        if again < len(pool) / self._capacity(size, newest=newest):
            return pool[int(generator.integers(len(pool)))], True
        whole = len(taus) - 1
        length = max(1, round(self._sizes[size][0] * whole))
        first = whole - length if newest else int(generator.integers(whole - length + 1))
        recipe = Recipe(size, int(taus[first]), length, int(taus[first + length]), self._drawn)
        self._drawn += 1
        pool.append(recipe)
        return recipe, False

    def recipes(self) -> set[Recipe]:
        """All."""
        return {recipe for pool in self._pools.values() for recipe in pool}

    def counts(self) -> dict[int, int]:
        """Recipes by size."""
        return {
            size: sum(len(self._pools[size, newest]) for newest in (False, True))
            for size in range(len(self._sizes))
        }

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from; that of rank 0 serves all, unless draws were limited by time."""
        rows = [
            (*astuple(recipe), int(newest)) for (_, newest), pool in self._pools.items() for recipe in pool
        ]
        return {"drawn": self._drawn, "recipes": np.array(rows, np.int64).reshape(len(rows), 6)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.begin()
        self._drawn = int(state["drawn"])
        for *columns, newest in np.asarray(state["recipes"]).tolist():
            recipe = Recipe(*columns)
            self._pools[recipe.size, bool(newest)].append(recipe)

    def _capacity(self, size: int, *, newest: bool) -> int:
        snapshots, vertices = self._sizes[size]
        whole = 1 / (snapshots * vertices) / len(self._sizes)
        share = self._newest_share if newest else 1 - self._newest_share
        return max(1, round(whole * share))


class BatchGenerator:
    """Makes batches beside training, and keeps them within a budget of bytes.

    Only the training thread touches kept batches; a batch is handed over by its future, without a lock.

    Args:
        make: Makes a batch, in any thread.
        budget_bytes: Of batches that are kept or ready.
        threads: That make them.

    Attributes:
        waits_s: Seconds that training waited for each batch that was not there, since ``since_last``.
        outcomes: Of batches since then: ``hit``, ``fresh`` (made now), ``again`` (made again, it had no room).
    """

    def __init__(self, make: Callable[[Recipe], HybridBatch], budget_bytes: int, threads: int) -> None:
        self._make, self._budget, self._threads = make, budget_bytes, threads
        self._pool: ThreadPoolExecutor | None = None
        self._futures: OrderedDict[Recipe, Future[HybridBatch]] = OrderedDict()
        self._batches: OrderedDict[Recipe, HybridBatch] = OrderedDict()
        self._kept_bytes = self._largest = 0
        self.waits_s: list[float] = []
        self.outcomes: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """Bytes of batches that are kept or ready."""
        ready = [future for future in self._futures.values() if future.done() and future.exception() is None]
        return self._kept_bytes + sum(future.result().nbytes for future in ready)

    def want(self, recipe: Recipe) -> None:
        """Begin to make a planned batch, if there is room for it."""
        if recipe in self._batches or recipe in self._futures:
            return
        if self._room() >= self._largest or not self._futures:
            self._submit(recipe)
            self._evict(self._room())

    def take(self, recipe: Recipe, *, known: bool) -> HybridBatch:
        """A batch; waits until it is made.

        Args:
            recipe: Of it.
            known: Whether the reservoir had the recipe.
        """
        batch = self._batches.get(recipe)
        if batch is not None:
            self._batches.move_to_end(recipe)
            self.outcomes["hit"] += 1
            return batch
        began = time.perf_counter()
        if recipe not in self._futures:
            self._submit(recipe)
        future = self._futures.pop(recipe)
        while not wait([future], timeout=LOOK_S).done:
            beat()
        batch = future.result()
        self.waits_s.append(time.perf_counter() - began)
        self.outcomes["again" if known else "fresh"] += 1
        self._largest = max(self._largest, batch.nbytes)
        if batch.nbytes <= self._room():
            self._evict(self._room() - batch.nbytes)
            self._batches[recipe] = batch
            self._kept_bytes += batch.nbytes
        return batch

    def retain(self, recipes: set[Recipe]) -> None:
        """Drop all batches except those of some recipes."""
        for recipe in [future for future in self._batches if future not in recipes]:
            self._kept_bytes -= self._batches.pop(recipe).nbytes

    def drain(self) -> None:
        """Drop batches that were not taken, and wait for those in the making: then no thread reads anything."""
        for future in self._futures.values():
            future.cancel()
        for future in self._futures.values():
            if not future.cancelled():
                future.exception()
        self._futures.clear()

    def close(self) -> None:
        """End the threads; a second call is harmless."""
        self.drain()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def since_last(self) -> tuple[list[float], Counter[str]]:
        """Waits and outcomes since the last call."""
        since = self.waits_s, self.outcomes
        self.waits_s, self.outcomes = [], Counter()
        return since

    def _submit(self, recipe: Recipe) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="batches")
        self._futures[recipe] = self._pool.submit(self._make, recipe)

    def _room(self) -> int:
        """Bytes for what is kept, beside batches that are ready, and those under way, taken to be as large as any was."""
        taken = 0
        for future in self._futures.values():
            ready = future.done() and future.exception() is None
            taken += future.result().nbytes if ready else self._largest
        return self._budget - taken

    def _evict(self, most: int) -> None:
        while self._batches and self._kept_bytes > most:
            self._kept_bytes -= self._batches.popitem(last=False)[1].nbytes
