"""The gates of the LSTM and of T-GCN at one snapshot, and their gradients, compiled: one pass over a row.

Rows of nodes that have not come keep their state, and only the state's own gradient passes through them.
"""

import numpy as np

from stream.kernels import njit
from trainer.nn.gates import WIDE, exp

_F = np.float32
_ONE, _TWO = _F(1), _F(2)


@njit(cache=True, nogil=True, inline="always")
def _sigmoid(x):  # type: ignore[no-untyped-def]  # compiled
    return _ONE / (_ONE + exp(-x))


@njit(cache=True, nogil=True, inline="always")
def _tanh(x):  # type: ignore[no-untyped-def]  # compiled
    return _ONE - _TWO / (exp(_TWO * x) + _ONE)


@njit(**WIDE)
def _sigmoids(gate):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(gate)):
        gate[j] = _sigmoid(gate[j])


@njit(**WIDE)
def _remember(taken, kept, new, shown, c, cell, h):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(c)):
        new[j] = _tanh(new[j])
        cell[j] = kept[j] * c[j] + taken[j] * new[j]
        h[j] = shown[j] * _tanh(cell[j])


@njit(**WIDE)
def lstm_open(gates, there, h, c, h_after, c_after):  # type: ignore[no-untyped-def]  # compiled
    """From products to the next states.

    Args:
        gates: float32 (n, 4 d), products of i, f, g and o; becomes the gates' outputs.
        there: bool (n,).
        h: float32 (n, d), before.
        c: float32 (n, d), before.
        h_after: float32 (n, d), filled.
        c_after: float32 (n, d), filled.
    """
    d = c.shape[1]
    for i in range(len(c)):
        if there[i]:
            gate = gates[i]
            _sigmoids(gate[: 2 * d])
            _sigmoids(gate[3 * d :])
            _remember(
                gate[:d], gate[d : 2 * d], gate[2 * d : 3 * d], gate[3 * d :], c[i], c_after[i], h_after[i]
            )
        else:
            h_after[i] = h[i]
            c_after[i] = c[i]


@njit(**WIDE)
def _by_output(by_h, shown, cell, by_shown, by_c):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(cell)):
        seen = _tanh(cell[j])
        by_shown[j] = by_h[j] * seen * shown[j] * (_ONE - shown[j])
        by_c[j] += by_h[j] * shown[j] * (_ONE - seen * seen)


@njit(**WIDE)
def _by_memory(by_c, taken, kept, new, c, by_taken, by_kept, by_new):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(c)):
        by_taken[j] = by_c[j] * new[j] * taken[j] * (_ONE - taken[j])
        by_kept[j] = by_c[j] * c[j] * kept[j] * (_ONE - kept[j])
        by_new[j] = by_c[j] * taken[j] * (_ONE - new[j] * new[j])
        by_c[j] *= kept[j]


@njit(cache=True, nogil=True)
def lstm_back(by_h, by_c, gates, there, c, c_after, by_gates):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of ``lstm_open``.

    Args:
        by_h: float32 (n, d), of h afterwards; becomes the part of h before that passes around the gates.
        by_c: float32 (n, d), of c afterwards; becomes that of c before.
        gates: float32 (n, 4 d), as ``lstm_open`` left them.
        there: bool (n,).
        c: float32 (n, d), before.
        c_after: float32 (n, d).
        by_gates: float32 (n, 4 d), filled.
    """
    d = c.shape[1]
    for i in range(len(c)):
        by_gate = by_gates[i]
        if there[i]:
            gate = gates[i]
            _by_output(by_h[i], gate[3 * d :], c_after[i], by_gate[3 * d :], by_c[i])
            _by_memory(
                by_c[i], gate[:d], gate[d : 2 * d], gate[2 * d : 3 * d], c[i],
                by_gate[:d], by_gate[d : 2 * d], by_gate[2 * d : 3 * d],
            )  # fmt: skip
            by_h[i] = 0
        else:
            by_gate[:] = 0


@njit(**WIDE)
def _reset(reset, h, kept):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        kept[j] = reset[j] * h[j]


@njit(**WIDE)
def gru_open(gates, h, kept):  # type: ignore[no-untyped-def]  # compiled
    """The update and reset gates, and the state after reset.

    Args:
        gates: float32 (n, 2 d), products of both; becomes their outputs.
        h: float32 (n, d), before.
        kept: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        _sigmoids(gates[i])
        _reset(gates[i, d:], h[i], kept[i])


@njit(**WIDE)
def _renew(update, new, h, after):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        new[j] = _tanh(new[j])
        after[j] = new[j] + update[j] * (h[j] - new[j])


@njit(**WIDE)
def gru_renew(gates, new, there, h, after):  # type: ignore[no-untyped-def]  # compiled
    """The next states.

    Args:
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        new: float32 (n, d), products of the candidate; becomes the candidate.
        there: bool (n,).
        h: float32 (n, d), before.
        after: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        if there[i]:
            _renew(gates[i, :d], new[i], h[i], after[i])
        else:
            after[i] = h[i]


@njit(**WIDE)
def _by_renewed(by_h, update, new, h, by_update, by_new):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        by_update[j] = by_h[j] * (h[j] - new[j]) * update[j] * (_ONE - update[j])
        by_new[j] = by_h[j] * (_ONE - update[j]) * (_ONE - new[j] * new[j])
        by_h[j] *= update[j]


@njit(cache=True, nogil=True)
def gru_back_new(by_h, gates, new, there, h, by_gates, by_new):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of the candidate and of the update gate.

    Args:
        by_h: float32 (n, d), of the next states; becomes the part of those before that passes around the gates.
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        new: float32 (n, d), as ``gru_renew`` left it.
        there: bool (n,).
        h: float32 (n, d), before.
        by_gates: float32 (n, 2 d), its first half filled.
        by_new: float32 (n, d), filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        if there[i]:
            _by_renewed(by_h[i], gates[i, :d], new[i], h[i], by_gates[i, :d], by_new[i])
        else:
            by_gates[i, :d] = 0
            by_new[i] = 0


@njit(**WIDE)
def _by_reset(by_kept, reset, h, by_h, by_gate):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(h)):
        by_gate[j] = by_kept[j] * h[j] * reset[j] * (_ONE - reset[j])
        by_h[j] += by_kept[j] * reset[j]


@njit(cache=True, nogil=True)
def gru_back_reset(by_h, by_kept, gates, h, by_gates):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of the reset gate; those of absent rows are zero because ``by_kept`` is.

    Args:
        by_h: float32 (n, d), added to.
        by_kept: float32 (n, d), of the state after reset.
        gates: float32 (n, 2 d), as ``gru_open`` left them.
        h: float32 (n, d), before.
        by_gates: float32 (n, 2 d), its second half filled.
    """
    d = h.shape[1]
    for i in range(len(h)):
        _by_reset(by_kept[i], gates[i, d:], h[i], by_h[i], by_gates[i, d:])
