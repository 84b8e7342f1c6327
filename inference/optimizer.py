"""One torch optimizer over many clients, each row with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["RowAdam"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


class RowAdam:
    """Adam (Kingma & Ba 2015) over the rows of ``[S, T]`` matrices, a client a row.

    Every row is a parameter of its own for ``torch.optim.Adam``, sharing memory with the matrix: one fused call
    updates all, and a row that sits out a round keeps its moments and its step count. So the result equals S
    separate Adams.

    Args:
        matrices: What to optimize, updated in place; each ``[S, T]`` and contiguous.
        state: What `state` returned for these clients; None or empty to start afresh.
    """

    def __init__(
        self, matrices: Sequence[Tensor], state: Mapping[str, Tensor] | None = None
    ) -> None:
        state = dict(state) if state else self.fresh_state(matrices)
        self._rows = [[row.detach() for row in matrix] for matrix in matrices]
        leaves = [row for rows in self._rows for row in rows]
        # Only the fused kernels keep the step count on the device.
        fused = leaves[0].device.type in ("cpu", "cuda")
        self._adam = torch.optim.Adam(leaves, lr=1e-3, fused=fused)
        counts = state["step"].to(leaves[0].device if fused else "cpu")
        self._moments = {
            f"{name}.{index}": state[f"{name}.{index}"].clone(memory_format=torch.contiguous_format)
            for index in range(len(matrices))
            for name in _MOMENTS
        }
        for index, rows in enumerate(self._rows):
            for client, row in enumerate(rows):
                # Views, so that the matrices always hold the present moments.
                own = {name: self._moments[f"{name}.{index}"][client] for name in _MOMENTS}
                self._adam.state[row] = {"step": counts[client].clone(), **own}

    @staticmethod
    def fresh_state(matrices: Sequence[Tensor]) -> dict[str, Tensor]:
        """The state before the first step."""
        zeros = {
            f"{name}.{index}": torch.zeros_like(matrix)
            for index, matrix in enumerate(matrices)
            for name in _MOMENTS
        }
        return {**zeros, "step": torch.zeros(len(matrices[0]), device=matrices[0].device)}

    def step(self, gradients: Sequence[Tensor], lr: float) -> None:
        """One update with gradients ``[S, T]``, one for each matrix, at learning rate ``lr``."""
        for rows, gradient in zip(self._rows, gradients, strict=True):
            for row, grad in zip(rows, gradient, strict=True):
                row.grad = grad
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """Moments ``[S, T]`` of each matrix and the step count ``[S]``, stacked by client."""
        steps = torch.stack([self._adam.state[row]["step"] for row in self._rows[0]])
        return {**self._moments, "step": steps}
