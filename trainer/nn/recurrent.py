"""Recurrent units on the host: the LSTM and T-GCN's, over all snapshots of a block of nodes.

Gates and their gradients take one compiled pass over a row, exponentials side by side. Rows of nodes that have not come keep
their state, and only the state's own gradient passes through them.

Nodes are independent, so a block of them passes over all snapshots before the next block does. Its products, gates and
states stay in the processor's caches; tables of all nodes would be read from memory for each product and each gate.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.nn.compiled import kernels_fit

_F = np.float32
_ONE, _TWO, _HALF = _F(1), _F(2), _F(0.5)
_LARGEST = _F(87)
"""eˣ beyond it is not a float32; gates reach their limits long before."""
_PER_LN2 = _F(1.4426950408889634)
_LN2, _LN2_REST = _F(0.693359375), _F(-2.12194440e-4)
"""ln 2 in two parts, the first of few bits, so that its multiples are exact (Cody and Waite)."""
_C2, _C3, _C4, _C5, _C6, _C7 = (_F(1 / float(np.prod(np.arange(1.0, i + 1)))) for i in range(2, 8))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)

_FUSED = {"contract", "nsz"}
# A division that may raise is a branch.
_WIDE = {"cache": True, "nogil": True, "fastmath": _FUSED, "error_model": "numpy"}


@njit(cache=True, nogil=True, inline="always")
def _exp(x):  # type: ignore[no-untyped-def]  # compiled
    """eˣ of a float32: powers of two, and Taylor's polynomial on half of ln 2 to either side; NaN stays NaN."""
    x = min(max(x, -_LARGEST), _LARGEST)
    twos = np.floor(x * _PER_LN2 + _HALF)
    r = (x - twos * _LN2) - twos * _LN2_REST
    far = _C4 + r * (_C5 + r * (_C6 + r * _C7))
    near = _ONE + r * (_ONE + r * (_C2 + r * (_C3 + r * far)))
    return near * np.int32((np.int32(twos) + _BIAS) << _MANTISSA).view(np.float32)


@njit(cache=True, nogil=True, inline="always")
def _sigmoid(x):  # type: ignore[no-untyped-def]  # compiled
    return _ONE / (_ONE + _exp(-x))


@njit(cache=True, nogil=True, inline="always")
def _tanh(x):  # type: ignore[no-untyped-def]  # compiled
    return _ONE - _TWO / (_exp(_TWO * x) + _ONE)


@njit(**_WIDE)
def _sigmoids(gate):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(gate)):
        gate[j] = _sigmoid(gate[j])


@njit(**_WIDE)
def _remember(taken, retained, new, shown, c, cell, h):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(c)):
        new[j] = _tanh(new[j])
        cell[j] = retained[j] * c[j] + taken[j] * new[j]
        h[j] = shown[j] * _tanh(cell[j])


@njit(**_WIDE)
def lstm_open(gates, present, h, c, h_after, c_after):  # type: ignore[no-untyped-def]  # compiled
    """From products to the next states.

    Args:
        gates: float32 (n, 4 d), products of i, f, g and o; becomes the gates' outputs.
        present: bool (n,).
        h: float32 (n, d), before.
        c: float32 (n, d), before.
        h_after: float32 (n, d), filled.
        c_after: float32 (n, d), filled.
    """
    d = c.shape[1]
    for i in range(len(c)):
        if present[i]:
            gate = gates[i]
            _sigmoids(gate[: 2 * d])
            _sigmoids(gate[3 * d :])
            _remember(
                gate[:d], gate[d : 2 * d], gate[2 * d : 3 * d], gate[3 * d :], c[i], c_after[i], h_after[i]
            )
        else:
            h_after[i] = h[i]
            c_after[i] = c[i]


@njit(**_WIDE)
def _by_output(by_h, shown, cell, by_shown, by_c):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(cell)):
        seen = _tanh(cell[j])
        by_shown[j] = by_h[j] * seen * shown[j] * (_ONE - shown[j])
        by_c[j] += by_h[j] * shown[j] * (_ONE - seen * seen)


@njit(**_WIDE)
def _by_memory(by_c, taken, retained, new, c, by_taken, by_retained, by_new):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(c)):
        by_taken[j] = by_c[j] * new[j] * taken[j] * (_ONE - taken[j])
        by_retained[j] = by_c[j] * c[j] * retained[j] * (_ONE - retained[j])
        by_new[j] = by_c[j] * taken[j] * (_ONE - new[j] * new[j])
        by_c[j] *= retained[j]


@njit(cache=True, nogil=True)
def lstm_back(by_h, by_c, gates, present, c, c_after, by_gates):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of ``lstm_open``.

    Args:
        by_h: float32 (n, d), of h afterwards; becomes the part of h before that passes around the gates.
        by_c: float32 (n, d), of c afterwards; becomes that of c before.
        gates: float32 (n, 4 d), as ``lstm_open`` left them.
        present: bool (n,).
        c: float32 (n, d), before.
        c_after: float32 (n, d).
        by_gates: float32 (n, 4 d), filled.
    """
    d = c.shape[1]
    for i in range(len(c)):
        by_gate = by_gates[i]
        if present[i]:
            gate = gates[i]
            _by_output(by_h[i], gate[3 * d :], c_after[i], by_gate[3 * d :], by_c[i])
            _by_memory(
                by_c[i], gate[:d], gate[d : 2 * d], gate[2 * d : 3 * d], c[i],
                by_gate[:d], by_gate[d : 2 * d], by_gate[2 * d : 3 * d],
            )  # fmt: skip
            by_h[i] = 0
        else:
            by_gate[:] = 0


@njit(**_WIDE)
def _reset(reset, h, reset_state):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        reset_state[j] = reset[j] * h[j]


@njit(**_WIDE)
def gru_open(gates, h, reset_state):  # type: ignore[no-untyped-def]  # compiled
    """The update and reset gates, and the state after reset.

    Args:
        gates: float32 (n, 2 d), products of both; becomes their outputs.
        h: float32 (n, d), before.
        reset_state: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        _sigmoids(gates[i])
        _reset(gates[i, d:], h[i], reset_state[i])


@njit(**_WIDE)
def _mix(update, new, h, after):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        new[j] = _tanh(new[j])
        after[j] = new[j] + update[j] * (h[j] - new[j])


@njit(**_WIDE)
def gru_renew(gates, new, present, h, after):  # type: ignore[no-untyped-def]  # compiled
    """The next states.

    Args:
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        new: float32 (n, d), products of the candidate; becomes the candidate.
        present: bool (n,).
        h: float32 (n, d), before.
        after: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        if present[i]:
            _mix(gates[i, :d], new[i], h[i], after[i])
        else:
            after[i] = h[i]


@njit(**_WIDE)
def _by_renewed(by_h, update, new, h, by_update, by_new):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        by_update[j] = by_h[j] * (h[j] - new[j]) * update[j] * (_ONE - update[j])
        by_new[j] = by_h[j] * (_ONE - update[j]) * (_ONE - new[j] * new[j])
        by_h[j] *= update[j]


@njit(cache=True, nogil=True)
def gru_back_new(by_h, gates, new, present, h, by_gates, by_new):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of the candidate and of the update gate.

    Args:
        by_h: float32 (n, d), of the next states; becomes the part of those before that passes around the gates.
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        new: float32 (n, d), as ``gru_renew`` left it.
        present: bool (n,).
        h: float32 (n, d), before.
        by_gates: float32 (n, 2 d), its first half filled.
        by_new: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        if present[i]:
            _by_renewed(by_h[i], gates[i, :d], new[i], h[i], by_gates[i, :d], by_new[i])
        else:
            by_gates[i, :d] = 0
            by_new[i] = 0


@njit(**_WIDE)
def _by_reset_state(by_reset_state, reset, h, by_h, by_gate):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        by_gate[j] = by_reset_state[j] * h[j] * reset[j] * (_ONE - reset[j])
        by_h[j] += by_reset_state[j] * reset[j]


@njit(cache=True, nogil=True)
def gru_back_reset(by_h, by_reset_state, gates, h, by_gates):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of the reset gate; those of absent rows are zero because ``by_reset_state`` is.

    Args:
        by_h: float32 (n, d), added to.
        by_reset_state: float32 (n, d), of the state after reset.
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        h: float32 (n, d), before.
        by_gates: float32 (n, 2 d), its second half filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        _by_reset_state(by_reset_state[i], gates[i, d:], h[i], by_h[i], by_gates[i, d:])


_BLOCK = 2048
"""Nodes: 64 wide, their gates are two mebibytes."""


def units_fit(rows: Tensor) -> bool:
    """Whether the units of this module can take rows (t, n, w): float32 in the host's memory, of one snapshot or more."""
    return kernels_fit(rows) and rows.dtype == torch.float32 and len(rows) > 0


class UnrolledLstm(torch.autograd.Function):
    """States (t, n, d) and the last memory (n, d) of an LSTM."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        of_inputs: Tensor,
        bias: Tensor,
        of_state: Tensor,
        present: Tensor,
        h: Tensor,
        c: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Pass over the snapshots.

        Args:
            ctx: Of autograd.
            rows: (t, n, w).
            of_inputs: (4 d, w), of i, f, g and o.
            bias: (4 d,).
            of_state: (4 d, d).
            present: bool (t, n).
            h: (n, d), before.
            c: (n, d), before.
        """
        states, saved, memory = rows.new_empty(len(rows), *h.shape), [], torch.empty_like(c)
        for nodes in node_blocks(h):
            before, cell = h[nodes], c[nodes]
            for x, come, state in zip(rows[:, nodes], present[:, nodes], states[:, nodes], strict=True):
                gates = torch.addmm(bias, x, of_inputs.t()).addmm_(before, of_state.t())
                after = torch.empty_like(cell)
                _call(lstm_open, gates, come, before, cell, state, after)
                saved += [gates, cell, after]
                before, cell = state, after
            memory[nodes] = cell
        ctx.save_for_backward(rows, of_inputs, of_state, present, h, states, *saved)
        return states, memory

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what ``forward`` took."""
        rows, of_inputs, of_state, present, h, states, *saved = ctx.saved_tensors
        by_states, by_c = gradients[0], gradients[1].clone(memory_format=torch.contiguous_format)
        by_rows, by_h = torch.empty_like(rows), torch.zeros_like(h)
        by_inputs, by_state = torch.zeros_like(of_inputs), torch.zeros_like(of_state)
        by_bias = of_inputs.new_zeros(len(of_inputs))
        for number, nodes in enumerate(node_blocks(h)):
            by_before, by_cell = by_h[nodes], by_c[nodes]
            by_gates = h.new_empty(len(by_before), len(of_inputs))
            for t in reversed(range(len(rows))):
                gates, cell, after = saved[3 * (number * len(rows) + t) :][:3]
                by_before += by_states[t, nodes]
                _call(lstm_back, by_before, by_cell, gates, present[t, nodes], cell, after, by_gates)
                torch.mm(by_gates, of_inputs, out=by_rows[t, nodes])
                by_inputs.addmm_(by_gates.t(), rows[t, nodes])
                by_state.addmm_(by_gates.t(), states[t - 1, nodes] if t else h[nodes])
                by_bias += by_gates.sum(dim=0)
                by_before.addmm_(by_gates, of_state)
        return by_rows, by_inputs, by_bias, by_state, None, by_h, by_c


class UnrolledGru(torch.autograd.Function):
    """States (t, n, d) of T-GCN's recurrence, or (1, n, d), the newest.

    The backward pass runs a block again to have its gates, which are several times wider than what they are made of. Saved
    for all nodes and snapshots, they would be most of a step's memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        of_inputs: Tensor,
        biases: Tensor,
        of_state: Tensor,
        present: Tensor,
        h: Tensor,
        newest: bool,
    ) -> Tensor:
        """Pass over the snapshots.

        Args:
            ctx: Of autograd.
            rows: (t, n, w).
            of_inputs: (3 d, w), of update, reset and candidate.
            biases: (3 d,).
            of_state: (3 d, d).
            present: bool (t, n).
            h: (n, d), before.
            newest: Whether only the newest states are wanted.
        """
        states = rows.new_empty(1 if newest else len(rows), *h.shape)
        first = len(rows) - len(states)
        for nodes in node_blocks(h):
            steps = _gru_steps(rows[:, nodes], of_inputs, biases, of_state, present[:, nodes], h[nodes])
            for t, (*_, after) in enumerate(steps):
                if t >= first:
                    states[t - first, nodes] = after
        ctx.save_for_backward(rows, of_inputs, biases, of_state, present, h)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what ``forward`` took."""
        (by_states,), (rows, of_inputs, biases, of_state, present, h) = gradients, ctx.saved_tensors
        d, first = h.shape[1], len(rows) - len(by_states)
        by_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        by_h, by_biases = torch.zeros_like(h), torch.zeros_like(biases)
        by_inputs, by_state = torch.zeros_like(of_inputs), torch.zeros_like(of_state)
        for nodes in node_blocks(h):
            by_before = by_h[nodes]
            by_gates, by_new = h.new_empty(len(by_before), 2 * d), torch.empty_like(by_before)
            steps = list(_gru_steps(rows[:, nodes], of_inputs, biases, of_state, present[:, nodes], h[nodes]))
            for t in reversed(range(len(rows))):
                before, gates, new, reset_state, _ = steps.pop()
                if t >= first:
                    by_before += by_states[t - first, nodes]
                _call(gru_back_new, by_before, gates, new, present[t, nodes], before, by_gates, by_new)
                by_reset_state = by_new @ of_state[2 * d :]
                _call(gru_back_reset, by_before, by_reset_state, gates, before, by_gates)
                by_before.addmm_(by_gates, of_state[: 2 * d])
                by_state[: 2 * d].addmm_(by_gates.t(), before)
                by_state[2 * d :].addmm_(by_new.t(), reset_state)
                for of, by_gate in ((slice(2 * d), by_gates), (slice(2 * d, None), by_new)):
                    by_inputs[of].addmm_(by_gate.t(), rows[t, nodes])
                    by_biases[of] += by_gate.sum(dim=0)
                if by_rows is not None:
                    torch.mm(by_gates, of_inputs[: 2 * d], out=by_rows[t, nodes])
                    by_rows[t, nodes].addmm_(by_new, of_inputs[2 * d :])
        return by_rows, by_inputs, by_biases, by_state, None, by_h, None


def _gru_steps(
    rows: Tensor, of_inputs: Tensor, biases: Tensor, of_state: Tensor, present: Tensor, h: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """Of each snapshot and a block of nodes: the state before, gates, candidate and state after reset, the state after."""
    d = h.shape[1]
    for x, come in zip(rows, present, strict=True):
        gates = torch.addmm(biases[: 2 * d], x, of_inputs[: 2 * d].t()).addmm_(h, of_state[: 2 * d].t())
        reset_state, after = torch.empty_like(h), torch.empty_like(h)
        _call(gru_open, gates, h, reset_state)
        new = torch.addmm(biases[2 * d :], x, of_inputs[2 * d :].t()).addmm_(
            reset_state, of_state[2 * d :].t()
        )
        _call(gru_renew, gates, new, come, h, after)
        yield h, gates, new, reset_state, after
        h = after


def node_blocks(rows: Tensor) -> list[slice]:
    """Blocks of the nodes of rows (…, n, w), whose tables stay in the processor's caches; on other devices one."""
    count = rows.shape[-2]
    length = _BLOCK if rows.device.type == "cpu" else max(1, count)
    return [slice(begin, begin + length) for begin in range(0, count, length)]


def _call(kernel: Any, *tensors: Tensor) -> None:
    kernel(*(tensor.detach().numpy() for tensor in tensors))
