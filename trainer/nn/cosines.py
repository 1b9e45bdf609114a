"""cos(ω Δt + φ) and its gradient, compiled: many angles side by side, without a table of them."""

import numpy as np

from stream.kernels import njit

# Taylor's coefficients at 0; on a quarter turn to either side the rest is below 10⁻¹⁴
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9 = (
    (-1.0) ** i / float(np.prod(np.arange(1.0, 2 * i + 1))) for i in range(1, 10)
)
_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9 = (
    (-1.0) ** i / float(np.prod(np.arange(1.0, 2 * i + 2))) for i in range(1, 10)
)
_PI = np.pi
_PI_REST = 1.2246467991473532e-16
"""π − the nearest float64: counts where there are millions of half turns."""

# A product and a sum may be rounded once. Nothing may be reordered, or π's two parts would be added up.
_FUSED = {"contract"}


@njit(cache=True, nogil=True, inline="always")
def _half_turns(angle):  # type: ignore[no-untyped-def]  # compiled
    """The rest of an angle after half turns, and the sign that these give sine and cosine."""
    turns = np.floor(angle * (1 / _PI) + 0.5)
    odd = turns - 2 * np.floor(turns * 0.5)
    return (angle - turns * _PI) - turns * _PI_REST, 1 - 2 * odd


@njit(cache=True, nogil=True, inline="always")
def cosine(angle):  # type: ignore[no-untyped-def]  # compiled
    """The cosine of a float64."""
    x, sign = _half_turns(angle)
    y = x * x
    far = _C5 + y * (_C6 + y * (_C7 + y * (_C8 + y * _C9)))
    return sign * (1 + y * (_C1 + y * (_C2 + y * (_C3 + y * (_C4 + y * far)))))


@njit(cache=True, nogil=True, inline="always")
def sine(angle):  # type: ignore[no-untyped-def]  # compiled
    """The sine of a float64."""
    x, sign = _half_turns(angle)
    y = x * x
    far = _S5 + y * (_S6 + y * (_S7 + y * (_S8 + y * _S9)))
    return sign * x * (1 + y * (_S1 + y * (_S2 + y * (_S3 + y * (_S4 + y * far)))))


@njit(cache=True, nogil=True, fastmath=_FUSED)
def cosines(seconds, frequency, phase, out):  # type: ignore[no-untyped-def]  # compiled
    """cos(ω_j s_i + φ_j) of all i and j.

    Args:
        seconds: float (m,).
        frequency: float (T,), ω.
        phase: float (T,), φ.
        out: float (m, T), filled.
    """
    for i in range(len(seconds)):
        row = out[i]
        for j in range(len(frequency)):
            row[j] = cosine(np.float64(seconds[i] * frequency[j] + phase[j]))


@njit(cache=True, nogil=True, fastmath=_FUSED)
def cosines_back(seconds, frequency, phase, gradient, by_frequency, by_phase):  # type: ignore[no-untyped-def]  # compiled
    """Add the gradients of ω and φ to ``by_frequency`` and ``by_phase``, float64 (T,); see ``cosines``."""
    for i in range(len(seconds)):
        row = gradient[i]
        for j in range(len(frequency)):
            change = sine(np.float64(seconds[i] * frequency[j] + phase[j])) * row[j]
            by_phase[j] -= change
            by_frequency[j] -= change * seconds[i]
