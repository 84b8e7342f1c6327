"""One torch optimizer over many clients, each row with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_MOMENTS = ("exp_avg", "exp_avg_sq")


class RowAdam:
    """Adam (Kingma & Ba 2015) over the rows of contiguous ``[S, T]`` matrices, a client a row; updates them in place.

    A parameter of ``torch.optim.Adam`` has one step count. Rows that have made equally many steps are one parameter,
    the matrix itself; otherwise every row is one, sharing memory with the matrix. So a client that sits out a round
    keeps its moments and its count, and the result equals S separate Adams. It goes on from what `state` returned for
    these clients; None or empty starts afresh.
    """

    def __init__(
        self, matrices: Sequence[Tensor], state: Mapping[str, Tensor] | None = None
    ) -> None:
        own = {k: v.clone(memory_format=torch.contiguous_format) for k, v in (state or {}).items()}
        state = own or self.fresh_state(matrices)
        self._clients = len(matrices[0])
        self._moments = {name: value for name, value in state.items() if name != "step"}
        self._together = bool((state["step"] == state["step"][0]).all())
        self._units = [self._split(matrix.detach()) for matrix in matrices]
        leaves = [leaf for units in self._units for leaf in units]
        # Only the fused kernels keep the step count on the device.
        fused = leaves[0].device.type in ("cpu", "cuda")
        self._adam = torch.optim.Adam(leaves, lr=1e-3, fused=fused)
        counts = state["step"].to(leaves[0].device if fused else "cpu")
        for index, units in enumerate(self._units):
            # Views, so that the matrices always hold the present moments.
            moments = {name: self._split(self._moments[f"{name}.{index}"]) for name in _MOMENTS}
            for k, leaf in enumerate(units):
                parts = {name: split[k] for name, split in moments.items()}
                self._adam.state[leaf] = {"step": counts[k].clone(), **parts}

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
        for units, gradient in zip(self._units, gradients, strict=True):
            for leaf, part in zip(units, self._split(gradient), strict=True):
                leaf.grad = part
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """Moments ``[S, T]`` of each matrix and the step count ``[S]``, stacked by client."""
        steps = torch.stack([self._adam.state[leaf]["step"] for leaf in self._units[0]])
        return {**self._moments, "step": steps.expand(self._clients).clone()}

    def _split(self, matrix: Tensor) -> list[Tensor]:
        return [matrix] if self._together else list(matrix)


def moment_of(name: str) -> int:
    """Which matrix an entry of the state belongs to: ``exp_avg.1`` to the second, the step count to none (-1)."""
    _, _, index = name.partition(".")
    return int(index) if index else -1


def split_moments(
    state: Mapping[str, Tensor], first: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of the first so many matrices, with the step count; and that of the others."""
    others = {name: value for name, value in state.items() if moment_of(name) >= first}
    return {name: value for name, value in state.items() if name not in others}, others
