"""``freshet-stream verify``: check every byte and every invariant of a store."""

import typer

from freshet_graph.stream.service.failure import DONE, FAILED
from freshet_graph.stream.service.output import Debug, Json, Store, finish, notes, print_json


def verify(
    store: Store,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a store's checksums, records and invariants, and list every problem; exit code 1 if there is one.

    Example: freshet-stream verify ./store
    """

    def body() -> int:
        from freshet_graph.stream.store.verify.store import verify as check

        with notes.status(f"Checking {store} …"):
            findings = check(store)
        if json:
            print_json(
                {
                    "ok": findings.ok,
                    "problems": findings.problems,
                    "files": findings.files,
                    "bytes": findings.bytes,
                }
            )
        else:
            for problem in findings.problems:
                typer.echo(problem)
            state = "whole" if findings.ok else f"damaged, problems: {len(findings.problems)}"
            typer.echo(f"{store} is {state} ({findings.files:,} files, {findings.bytes:,} bytes read)")
        return DONE if findings.ok else FAILED

    finish(body, debug=debug)
