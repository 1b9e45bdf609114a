"""Which submission may read for a store: a small file beside the log, checked by every source of every job.

Cancelling by a runner may leave sources running, and a job whose submitter died is never cancelled. So sources end by
themselves as soon as the store no longer names their submission.
"""

from stream.store.places.place import Place, place_of

FOLDER = "job"
NAME = "current"


def announce(store: str | Place, submission: str) -> None:
    """Let this submission read for the store; every other one ends."""
    (place_of(store) / FOLDER / NAME).put(f"{submission}\n".encode("ascii"))


def withdraw(store: str | Place, submission: str) -> None:
    """End this submission's sources, unless another one has been announced since."""
    if is_current(store, submission):
        (place_of(store) / FOLDER / NAME).unlink(missing_ok=True)


def is_current(store: str | Place, submission: str) -> bool:
    """Whether this submission is the one that reads for the store."""
    try:
        return (place_of(store) / FOLDER / NAME).read_bytes().decode("ascii").strip() == submission
    except FileNotFoundError:
        return False
