"""Compiled kernels: where they are kept, and which had to be compiled."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "NUMBA_CACHE_DIR"
"""Environment: where numba keeps compiled kernels; unset: beside the modules, else in the user's cache folder."""


def kernels_folder() -> Path | None:
    """A folder for compiled kernels that this process can write to; None: one of numba's own will do.

    numba refuses to import a kernel that it could not keep, and only considers folders that it could write to. If neither
    the configured folder, nor the modules', nor the user's is writable (a read-only image, a wheel that another user
    installed), kernels are kept in the folder for temporary files, beginning with those of the configured folder.
    """
    chosen, home = os.environ.get(FOLDER), os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    looked_in = [chosen] if chosen else [str(Path(__file__).parent), *([home] if home else [])]
    if any(_writable(Path(folder)) for folder in looked_in):
        return None
    user_folder = Path(tempfile.gettempdir()) / f"freshet-kernels-{os.getuid()}"
    if not user_folder.exists():
        staged = Path(tempfile.mkdtemp(prefix=f"{user_folder.name}-"))
        if chosen and Path(chosen).is_dir():
            shutil.copytree(chosen, staged, dirs_exist_ok=True)
            for folder in (staged, *(path for path in staged.rglob("*") if path.is_dir())):
                folder.chmod(0o700)  # copied with their permissions
        try:
            user_folder = staged.rename(user_folder)
        except OSError:  # another process was faster
            shutil.rmtree(staged)
    if user_folder.lstat().st_uid != os.getuid():  # kernels are code: use none of another user
        user_folder = Path(tempfile.mkdtemp(prefix=f"{user_folder.name}-"))
    return user_folder


def _writable(folder: Path) -> bool:
    """Whether a folder can be written to, or made."""
    existing = next(ancestor for ancestor in (folder, *folder.parents) if ancestor.exists())
    return os.access(existing, os.W_OK | os.X_OK)


@contextmanager
def compiling() -> Iterator[list[str]]:
    """Collect the functions that numba compiles inside the block, ``module.function`` per kind of arguments."""
    from numba.core import event

    functions: list[str] = []

    class Watch(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, started: Any) -> None:
            function = started.data["dispatcher"].py_func
            if not function.__module__.startswith("numba."):
                functions.append(f"{function.__module__}.{function.__name__}")

        def on_end(self, ended: Any) -> None:
            pass

    with event.install_listener("numba:compile", Watch()):
        yield functions
