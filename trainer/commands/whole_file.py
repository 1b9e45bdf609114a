"""Files that commands write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freshet_graph.stream.service.failure import Failure


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A temporary path for the body to write, which then becomes ``out``: the file appears whole or not at all.

    Raises:
        Failure: It cannot be written.
    """
    temporary = out.with_name(out.name + ".tmp")
    try:
        yield temporary
        temporary.replace(out)
    except OSError as error:
        raise Failure(
            f"--out {out} cannot be written: {error.strerror or error}. Give another path"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
