"""The cyclic garbage collector, which finds nothing while modules are loaded and messages are read."""

import gc


def collect_rarely() -> None:
    """Collect after many new objects: loading makes a million, all of which stay."""
    gc.set_threshold(50_000, 20, 20)


def calm_collector() -> None:
    """Keep the collector off all objects so far, which it would walk for the many records of every poll."""
    collect_rarely()
    gc.freeze()  # what was loaded leaves no garbage that a collection, of a tenth of a second, would be worth
