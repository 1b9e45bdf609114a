"""The gates of a recurrent unit and their gradients, compiled: one pass over a row, exponentials side by side."""

import numpy as np

from stream.kernels import njit

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
WIDE = {"cache": True, "nogil": True, "fastmath": _FUSED, "error_model": "numpy"}


@njit(cache=True, nogil=True, inline="always")
def exp(x):  # type: ignore[no-untyped-def]  # compiled
    """eˣ of a float32: powers of two, and Taylor's polynomial on half of ln 2 to either side; NaN stays NaN."""
    x = min(max(x, -_LARGEST), _LARGEST)
    twos = np.floor(x * _PER_LN2 + _HALF)
    r = (x - twos * _LN2) - twos * _LN2_REST
    far = _C4 + r * (_C5 + r * (_C6 + r * _C7))
    near = _ONE + r * (_ONE + r * (_C2 + r * (_C3 + r * far)))
    return near * np.int32((np.int32(twos) + _BIAS) << _MANTISSA).view(np.float32)


@njit(**WIDE)
def _open(gate, bias):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(gate)):
        gate[j] = _ONE / (_ONE + exp(-(gate[j] + bias[j])))


@njit(**WIDE)
def _renew(reset, keep, new, told, bias, told_bias, state, out):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(new)):
        told[j] += told_bias[j]
        pre = new[j] + bias[j] + reset[j] * told[j]
        new[j] = _ONE - _TWO / (exp(_TWO * pre) + _ONE)  # tanh
        out[j] = new[j] + keep[j] * (state[j] - new[j])


@njit(**WIDE)
def gates_open(gates, told, bias, told_bias, state, out):  # type: ignore[no-untyped-def]  # compiled
    """From products to the next states.

    Args:
        gates: float32 (n, 3 d), products of reset, update and new gate; becomes the gates' outputs.
        told: float32 (n, d), W_hn · state; its bias is added.
        bias: float32 (3 d,), of the gates.
        told_bias: float32 (d,).
        state: float32 (n, ≥ d), states in front.
        out: float32 (n, d), filled.
    """
    d = told.shape[1]
    for i in range(len(told)):
        gate = gates[i]
        _open(gate[: 2 * d], bias[: 2 * d])
        _renew(
            gate[:d], gate[d : 2 * d], gate[2 * d :], told[i], bias[2 * d :], told_bias, state[i, :d], out[i]
        )


@njit(**WIDE)
def _by_new(gradient, reset, keep, new, by_new, by_told):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(new)):
        by_new[j] = gradient[j] * (_ONE - keep[j]) * (_ONE - new[j] * new[j])
        by_told[j] = by_new[j] * reset[j]


@njit(**WIDE)
def _by_keep(gradient, keep, new, state, by_keep):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(new)):
        by_keep[j] = gradient[j] * (state[j] - new[j]) * keep[j] * (_ONE - keep[j])


@njit(**WIDE)
def _by_reset(by_told, told, reset, by_reset):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(reset)):
        by_reset[j] = by_told[j] * told[j] * (_ONE - reset[j])


@njit(**WIDE)
def _add(to, what):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(to)):
        to[j] += what[j]


@njit(cache=True, nogil=True)
def gates_back(gradient, gates, told, state, by_gates, by_told, sums):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of the products of ``gates_open``.

    Args:
        gradient: float32 (n, d), of the next states.
        gates: float32 (≥ n, 3 d), as ``gates_open`` left them.
        told: float32 (≥ n, d), as ``gates_open`` left it.
        state: float32 (≥ n, ≥ d).
        by_gates: float32 (≥ n, 3 d), filled.
        by_told: float32 (≥ n, d), filled.
        sums: float32 (4 d,), to which the sums over rows of the two are added.
    """
    d = told.shape[1]
    for i in range(len(gradient)):
        gate, by_gate = gates[i], by_gates[i]
        reset, keep, new = gate[:d], gate[d : 2 * d], gate[2 * d :]
        _by_new(gradient[i], reset, keep, new, by_gate[2 * d :], by_told[i])
        _by_keep(gradient[i], keep, new, state[i, :d], by_gate[d : 2 * d])
        _by_reset(by_told[i], told[i], reset, by_gate[:d])
        _add(sums[: 3 * d], by_gate)
        _add(sums[3 * d :], by_told[i])
