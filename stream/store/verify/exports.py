"""What trainers exported, checked: every record, every file it names, no number missing."""

from schemas.exports import ExportCommit
from stream.store.errors import RetainedError, StoreError
from stream.store.exports.layout import commit_name
from stream.store.exports.reader import ExportReader
from stream.store.places.place import Place
from stream.store.verify.check import Check


def verify_exports(store: Place, name: str) -> Check:
    """Check the exports under one name; may run beside a trainer.

    Args:
        store: The store.
        name: Of the exports.
    """
    check = Check()
    try:
        reader = ExportReader(store, name)
        for number in range(reader.commits.first, len(reader.commits)):
            try:
                _verify(reader, reader.commits[number], check)
            except RetainedError:
                continue  # removed this moment
            except StoreError as error:
                check.tell(str(error))
    except StoreError as error:
        check.tell(str(error))
    return check


def _verify(reader: ExportReader, commit: ExportCommit, check: Check) -> None:
    check.read(reader.root / commit_name(commit.number))
    for kind, rows in (("embeddings", commit.num_embeddings), ("scores", commit.num_scores)):
        reference = commit.embeddings if kind == "embeddings" else commit.scores
        if reference is None:
            continue
        table = reader.table(commit, "embeddings" if kind == "embeddings" else "scores")
        check.read(reader.root / reference.path)
        if table is not None and len(table) != rows:
            check.tell(
                f"{reader.root / reference.path} has {len(table)} rows, export {commit.number} says {rows}"
            )
