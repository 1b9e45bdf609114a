"""Check a trainer's exports: every record, every file it names, no number missing."""

from schemas.exports import ExportCommit, ExportKind
from stream.store.errors import RetainedError, StoreError
from stream.store.exports.layout import commit_name
from stream.store.exports.reader import ExportReader
from stream.store.places.place import Place
from stream.store.verify.check import Check


def verify_exports(store: Place, name: str) -> Check:
    """Check the exports under one name; may run beside a trainer."""
    check = Check()
    try:
        reader = ExportReader(store, name)
        for number in range(reader.commits.first, len(reader.commits)):
            try:
                _verify(reader, reader.commits[number], check)
            except RetainedError:
                continue  # removed just now
            except StoreError as error:
                check.report(str(error))
    except StoreError as error:
        check.report(str(error))
    return check


def _verify(reader: ExportReader, commit: ExportCommit, check: Check) -> None:
    check.read(reader.root / commit_name(commit.number))
    kinds: tuple[ExportKind, ...] = ("embeddings", "scores")
    for kind, rows in zip(kinds, (commit.num_embeddings, commit.num_scores), strict=True):
        if (reference := commit.file(kind)) is None:
            continue
        table = reader.table(commit, kind)
        check.read(reader.root / reference.path)
        if table is not None and len(table) != rows:
            check.report(
                f"{reader.root / reference.path} has {len(table)} rows, export {commit.number} says {rows}"
            )
