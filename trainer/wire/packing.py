"""Rows of several tables as rows of bytes, so that they cross ranks at once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def packed(tables: Sequence[Tensor]) -> Tensor:
    """Tables (n, …) of any types and one device as one: uint8 (n, bytes)."""
    return torch.cat(
        [_copied(table.reshape(len(table), _width(table))).view(torch.uint8) for table in tables], dim=1
    )


def unpacked(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tables of ``packed`` rows; ``like``: tables of their types and shapes, of any length."""
    parts = torch.split(rows, [_width(table) * table.element_size() for table in like], dim=1)
    return [
        _copied(part).view(-1).view(table.dtype).view(len(rows), *table.shape[1:])
        for part, table in zip(parts, like, strict=True)
    ]


def _width(table: Tensor) -> int:
    return math.prod(table.shape[1:])


def _copied(table: Tensor) -> Tensor:
    """A copy, which can be read as another type; a single row counts as contiguous whatever its strides."""
    return table.clone(memory_format=torch.contiguous_format)
