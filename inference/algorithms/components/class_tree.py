"""Binary trees of classes: those alike part late."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 20


def class_tree(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Split C classes in two by 2-means of their mean features ``[n, D]``, and each part again.

    ``[C - 1, C]``, a row for each inner node, the root first: -1 and 1 for the classes on its two sides, 0 for those
    that are not below it. A class without example is on no side; rows that are not needed are 0.

    Example:
        >>> z = torch.tensor([[0.0], [0.2], [5.0]])
        >>> class_tree(z, torch.tensor([0, 2, 3]), 4).int().tolist()
        [[-1, 0, -1, 1], [-1, 0, 1, 0], [0, 0, 0, 0]]
    """
    sides = z.new_zeros((classes - 1, classes))
    present = y.unique()
    means = torch.stack([z[y == c].mean(0) for c in present]) if len(present) else z[:0]
    waiting, row = [torch.arange(len(present), device=z.device)], 0
    while waiting:
        below = waiting.pop(0)
        if len(below) > 1:
            right = two_means(means[below])
            sides[row, present[below[~right]]] = -1
            sides[row, present[below[right]]] = 1
            waiting += [below[~right], below[right]]
            row += 1
    return sides


def two_means(points: Tensor) -> Tensor:
    """Two groups of at least two points ``[K, D]``, from the two farthest apart; False for that of the first point."""
    gaps = torch.cdist(points, points)
    first, second = divmod(int(gaps.argmax()), len(points))
    if first == second:  # all in one place
        return torch.arange(len(points), device=points.device) >= (len(points) + 1) // 2
    centres = points[[first, second]]
    group = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for _ in range(ROUNDS):
        distance = torch.cdist(points, centres)
        found = distance[:, 1] < distance[:, 0]
        if bool(found.all()) or not bool(found.any()) or torch.equal(found, group):
            break
        group = found
        centres = torch.stack([points[~group].mean(0), points[group].mean(0)])
    return group ^ group[0]
