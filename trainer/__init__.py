"""The training service: follows a store's lane and keeps a temporal graph model trained on it."""

import stream  # noqa: F401  which sees to it that kernels can be kept, before numba looks for a place
