"""Recurrent units over all snapshots of a block on the host, with compiled gates.

Nodes are independent, so a block of them passes over all snapshots before the next block does. Its products, gates and
states stay in the processor's caches; tables of all nodes would be read from memory for each product and each gate.
"""

from typing import Any

import torch
from torch import Tensor

from trainer.nn.compiled import kernels_fit
from trainer.nn.step_gates import gru_back_new, gru_back_reset, gru_open, gru_renew, lstm_back, lstm_open

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
        there: Tensor,
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
            there: bool (t, n).
            h: (n, d), before.
            c: (n, d), before.
        """
        states, saved, memory = rows.new_empty(len(rows), *h.shape), [], torch.empty_like(c)
        for nodes in _blocks(h):
            before, kept = h[nodes], c[nodes]
            for x, come, state in zip(rows[:, nodes], there[:, nodes], states[:, nodes], strict=True):
                gates = torch.addmm(bias, x, of_inputs.t()).addmm_(before, of_state.t())
                after = torch.empty_like(kept)
                _call(lstm_open, gates, come, before, kept, state, after)
                saved += [gates, kept, after]
                before, kept = state, after
            memory[nodes] = kept
        ctx.save_for_backward(rows, of_inputs, of_state, there, h, states, *saved)
        return states, memory

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what ``forward`` took."""
        rows, of_inputs, of_state, there, h, states, *saved = ctx.saved_tensors
        by_states, by_c = gradients[0], gradients[1].clone(memory_format=torch.contiguous_format)
        by_rows, by_h = torch.empty_like(rows), torch.zeros_like(h)
        by_inputs, by_state = torch.zeros_like(of_inputs), torch.zeros_like(of_state)
        by_bias = of_inputs.new_zeros(len(of_inputs))
        for number, nodes in enumerate(_blocks(h)):
            by_before, by_kept = by_h[nodes], by_c[nodes]
            by_gates = h.new_empty(len(by_before), len(of_inputs))
            for t in reversed(range(len(rows))):
                gates, kept, after = saved[3 * (number * len(rows) + t) :][:3]
                by_before += by_states[t, nodes]
                _call(lstm_back, by_before, by_kept, gates, there[t, nodes], kept, after, by_gates)
                torch.mm(by_gates, of_inputs, out=by_rows[t, nodes])
                by_inputs.addmm_(by_gates.t(), rows[t, nodes])
                by_state.addmm_(by_gates.t(), states[t - 1, nodes] if t else h[nodes])
                by_bias += by_gates.sum(dim=0)
                by_before.addmm_(by_gates, of_state)
        return by_rows, by_inputs, by_bias, by_state, None, by_h, by_c


class UnrolledGru(torch.autograd.Function):
    """States (t, n, d) of T-GCN's recurrence."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, biases: Tensor, there: Tensor, h: Tensor) -> Tensor:
        """Pass over the snapshots.

        Args:
            ctx: Of autograd.
            rows: (t, n, d), or (t, n, 3 d) if each gate has its own.
            weights: (3 d, 2 d), of update, reset and candidate, for [input ‖ state].
            biases: (3 d,).
            there: bool (t, n).
            h: (n, d), before.
        """
        d, states = h.shape[1], rows.new_empty(len(rows), *h.shape)
        of_state, saved = weights[:, d:].contiguous(), []
        for nodes in _blocks(h):
            before = h[nodes]
            for x, come, state in zip(rows[:, nodes], there[:, nodes], states[:, nodes], strict=True):
                gates, new, kept = h.new_empty(len(x), 2 * d), h.new_empty(len(x), d), h.new_empty(len(x), d)
                for gate, out in enumerate((gates[:, :d], gates[:, d:], new)):
                    of = slice(gate * d, (gate + 1) * d)
                    torch.addmm(biases[of], _of_gate(x, gate, d), weights[of, :d].t(), out=out)
                gates.addmm_(before, of_state[: 2 * d].t())
                _call(gru_open, gates, before, kept)
                new.addmm_(kept, of_state[2 * d :].t())
                _call(gru_renew, gates, new, come, before, state)
                saved += [gates, new, kept]
                before = state
        ctx.save_for_backward(rows, weights, there, h, states, *saved)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what ``forward`` took."""
        (by_states,), (rows, weights, there, h, states, *saved) = gradients, ctx.saved_tensors
        d, shared = h.shape[1], rows.shape[2] == h.shape[1]
        of_state = weights[:, d:].contiguous()
        by_rows, by_h = torch.zeros_like(rows) if shared else torch.empty_like(rows), torch.zeros_like(h)
        by_weights, by_biases = torch.zeros_like(weights), weights.new_zeros(3 * d)
        for number, nodes in enumerate(_blocks(h)):
            by_before = by_h[nodes]
            by_gates, by_new = h.new_empty(len(by_before), 2 * d), torch.empty_like(by_before)
            for t in reversed(range(len(rows))):
                gates, new, kept = saved[3 * (number * len(rows) + t) :][:3]
                before = states[t - 1, nodes] if t else h[nodes]
                by_before += by_states[t, nodes]
                _call(gru_back_new, by_before, gates, new, there[t, nodes], before, by_gates, by_new)
                by_kept = by_new @ of_state[2 * d :]
                _call(gru_back_reset, by_before, by_kept, gates, before, by_gates)
                by_before.addmm_(by_gates, of_state[: 2 * d])
                by_weights[: 2 * d, d:] += by_gates.t() @ before
                by_weights[2 * d :, d:] += by_new.t() @ kept
                for gate, by in enumerate((by_gates[:, :d], by_gates[:, d:], by_new)):
                    of = slice(gate * d, (gate + 1) * d)
                    by_weights[of, :d] += by.t() @ _of_gate(rows[t, nodes], gate, d)
                    by_biases[of] += by.sum(dim=0)
                    _of_gate(by_rows[t, nodes], gate, d).addmm_(by, weights[of, :d], beta=float(shared))
        return by_rows, by_weights, by_biases, None, by_h


def _blocks(h: Tensor) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, len(h), _BLOCK)]


def _of_gate(x: Tensor, gate: int, d: int) -> Tensor:
    """The part of a row that a gate sees: all of it, or a slice of its own."""
    return x if x.shape[1] == d else x[:, gate * d : (gate + 1) * d]


def _call(kernel: Any, *tensors: Tensor) -> None:
    kernel(*(tensor.detach().numpy() for tensor in tensors))
