"""Every Python process that finds this first leaves the kinds of arguments its kernels were called with.

``KERNELS`` is the folder: a file a process, with ``module.function(types)`` a line.
"""

import atexit
import os
import sys
from pathlib import Path


def leave() -> None:
    dispatcher = getattr(sys.modules.get("numba.core.dispatcher"), "Dispatcher", None)
    if dispatcher is None:
        return
    used = {
        f"{kernel.py_func.__module__}.{kernel.py_func.__name__}{signature}"
        for name, module in list(sys.modules.items())
        if name.startswith(("freshet_graph.stream.", "freshet_graph.trainer."))
        for kernel in list(vars(module).values())
        if isinstance(kernel, dispatcher)
        for signature in kernel.signatures
    }
    (Path(os.environ["KERNELS"]) / f"{os.getpid()}").write_text("\n".join(sorted(used)))


if "KERNELS" in os.environ:
    atexit.register(leave)
