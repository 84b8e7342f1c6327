import torch

from pyro_pfedbayes.inference.algorithms.components.class_tree import class_tree, two_means


def test_two_groups_by_hand() -> None:
    points = torch.tensor([[0.0, 0.0], [10.0, 0.0], [1.0, 0.0], [9.0, 1.0], [0.0, 2.0]])
    assert two_means(points).tolist() == [False, True, False, True, False]
    assert two_means(torch.ones(3, 2)).tolist() == [False, False, True]


def test_tree_separates_every_pair_of_classes_once() -> None:
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 6
    z = torch.randn(6, 3, generator=stream)[y] + 0.01 * torch.randn(60, 3, generator=stream)
    y = y + (y >= 2).long()  # class 2 of 8, and 7, has no example
    tree = class_tree(z, y, 8)
    assert tree.shape == (7, 8)
    present = y.unique().tolist()
    assert tree[:, [c for c in range(8) if c not in present]].abs().sum() == 0
    assert (tree != 0).any(1).tolist() == [True] * 5 + [False] * 2
    for a in present:
        for b in present:
            apart = (tree[:, a] * tree[:, b] == -1).sum()
            assert int(apart) == (a != b)


def test_classes_alike_part_last() -> None:
    z = torch.tensor([[0.0], [5.0], [0.5], [5.5]])
    tree = class_tree(z, torch.arange(4), 4)
    assert tree.int().tolist() == [[-1, 1, -1, 1], [-1, 0, 1, 0], [0, -1, 0, 1]]


def test_a_single_class_needs_no_node() -> None:
    assert class_tree(torch.ones(2, 3), torch.tensor([1, 1]), 3).abs().sum() == 0
