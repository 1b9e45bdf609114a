"""``freshet-stream inspect``: what a store holds."""

from typing import Annotated, Any

import typer

from stream.service.output import Debug, Json, Store, finish, print_json, print_table
from stream.store.errors import StoreError

_LANE_COLUMNS = (
    "algorithm", "parts", "snapshots", "lag", "bytes", "full_bytes", "saving",
    "cut", "replication_factor", "node_balance", "edge_balance", "moved_share",
)  # fmt: skip


def inspect(
    store: Store,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="MOMENT",
            help="Only snapshots up to this one (18262), this time (2024-05-01T12:00, UTC) or these seconds (@1714564800).",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a store's snapshots, events and offsets, and each lane's size, saving and quality.

    Example: freshet-stream inspect ./store
    """

    def body() -> None:
        from stream.store.as_of import AsOf
        from stream.store.inspect import inspect as describe

        found = describe(store, None if as_of is None else AsOf.parse(as_of))
        if json:
            print_json(found)
        else:
            _print_tables(store, found)

    finish(body, StoreError, debug=debug)


def _print_tables(store: str, found: dict[str, Any]) -> None:
    from stream.store.log.refusals import as_rows

    rows = {key: found[key] for key in found if key not in ("lanes", "offsets", "refused_by_reason")}
    rows |= as_rows(found["refused_by_reason"])
    for topic, partitions in found["offsets"].items():
        rows[f"offsets of {topic}"] = ", ".join(f"{p}: {offset:,}" for p, offset in partitions.items())
    print_table(f"Store {store}", rows)
    for name, lane in found["lanes"].items():
        print_table(f"Lane {name}", {column: lane[column] for column in _LANE_COLUMNS})
