"""``freshet-stream verify``: check every byte and every invariant of a store."""

import typer

from stream.service.failure import DONE, FAILED
from stream.service.output import Debug, Json, Store, finish, notes, print_json


def verify(
    store: Store,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a store's checksums, records and invariants, and list every problem; exit code 1 if there is one.

    Example: freshet-stream verify ./store
    """

    def body() -> int:
        from stream.store.verify.store import verify as check

        with notes.status(f"Checking {store} …"):
            found = check(store)
        if json:
            print_json(
                {"ok": found.ok, "problems": found.problems, "files": found.files, "bytes": found.bytes}
            )
        else:
            for problem in found.problems:
                typer.echo(problem)
            state = "whole" if found.ok else f"damaged, problems: {len(found.problems)}"
            typer.echo(f"{store} is {state} ({found.files:,} files, {found.bytes:,} bytes read)")
        return DONE if found.ok else FAILED

    finish(body, debug=debug)
