"""``freshet-stream inspect``: the content of a store."""

from typing import Any

from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.schemas.quality import FIGURES
from freshet_graph.stream.commands.options import StoreMoment
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    Store,
    finish,
    note,
    print_json,
    print_table,
    with_units,
)

_LANE_COLUMNS = (
    "algorithm", "parts", "snapshots", "lag", "bytes", "full_bytes", "saving", "disk_bytes",
    *(name for name, shown in FIGURES.items() if shown.lane),
)  # fmt: skip


def inspect(
    store: Store,
    as_of: StoreMoment = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a store's snapshots, events and offsets, and each lane's size, saving and quality.

    Example: freshet-stream inspect ./store
    """

    def body() -> None:
        from freshet_graph.stream.store.as_of import AsOf
        from freshet_graph.stream.store.inspect import inspect as describe

        description = describe(store, None if as_of is None else AsOf.parse(as_of))
        if json:
            print_json(description)
        else:
            _print_tables(store, description)

    finish(body, debug=debug)


def _print_tables(store: str, description: dict[str, Any]) -> None:
    from freshet_graph.stream.store.log.refusals import as_rows

    apart = ("lanes", "offsets", "labels", "refused_by_reason", "history", "assumptions")
    rows = {key: value for key, value in description.items() if key not in apart}
    rows |= as_rows(description.get("refused_by_reason", {}))
    for key, value in (description.get("history") or {}).items():
        rows[f"history {key}"] = show_time(round(value * US_PER_S)) if key == "until" else value
    labels = description.get("labels") or {}
    rows |= {f"labels {key}": value for key, value in labels.items() if key != "by_source"}
    for source, count in labels.get("by_source", {}).items():
        rows[f"labels of {source or 'no source'}"] = count
    for topic, partitions in description.get("offsets", {}).items():
        rows[f"offsets of {topic}"] = ", ".join(f"{p}: {offset}" for p, offset in partitions.items())
    print_table(f"Store {store}", with_units(rows))
    for name, lane in description["lanes"].items():
        print_table(f"Lane {name}", with_units({column: lane[column] for column in _LANE_COLUMNS}))
    for sentence in description["assumptions"]:
        note(f"note: {sentence}")
