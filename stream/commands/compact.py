"""``freshet-stream compact``: index a store, drop old snapshots, remove lanes."""

from typing import Annotated

import typer

from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    Store,
    finish,
    note,
    notes,
    print_json,
    print_table,
    with_units,
)


def compact(
    store: Store,
    snapshots: Annotated[
        int | None, typer.Option("--keep-snapshots", min=1, help="Number of newest snapshots to keep.")
    ] = None,
    time_s: Annotated[
        float | None,
        typer.Option(
            "--keep-time",
            min=0,
            max=1e11,
            metavar="SECONDS",
            help="Keep snapshots that end within this many seconds before the newest one's end.",
        ),
    ] = None,
    remove_lane: Annotated[
        list[str] | None,
        typer.Option("--remove-lane", help="Remove this lane with all its files. May be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be dropped and freed, and change nothing.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write indexes that open the store at once, drop snapshots by the rules given, and free their space.

    May run beside the stream service and trainers. Without --keep-snapshots and --keep-time no snapshot is dropped.

    Example: freshet-stream compact ./store --keep-time 2592000
    """

    def body() -> None:
        from freshet_graph.stream.store.compact.store import Keep, foresee
        from freshet_graph.stream.store.compact.store import compact as run

        configure_logs(level="WARNING", as_json=False)
        keep, remove = Keep(snapshots, time_s), remove_lane or []
        with notes.status(f"{'Looking at' if dry_run else 'Compacting'} {store} …"):
            done = (
                foresee(store, keep, remove=remove)
                if dry_run
                else run(store, keep, always=True, remove=remove)
            )
        summary = {
            "dry_run": dry_run,
            "dropped": done.dropped,
            "folded": done.folded,
            "first": done.first,
            "indexed": done.indexed,
            "removed": done.removed,
            "held_by": done.held_by,
            "freed_bytes": done.freed_bytes,
        }
        if json:
            print_json(summary)
            return
        for name in done.held_by:
            note(
                f"note: lane {name} still needs older snapshots of the log. They go once the lane has advanced, or is removed "
                f"(--remove-lane {name})"
            )
        print_table(f"Store {store}{', if it were compacted' if dry_run else ''}", with_units(summary))

    finish(body, debug=debug)
