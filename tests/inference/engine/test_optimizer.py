import torch

from pyro_pfedbayes.inference.engine.optimizer import RowAdam


def test_rows_equal_separate_adams_with_their_own_step_counts() -> None:
    """Client 1 sits out two of five steps; its moments and its step count must wait, not decay."""
    stream = torch.Generator().manual_seed(0)
    start = torch.randn(3, 7, generator=stream)
    gradients = torch.randn(5, 3, 7, generator=stream)
    present = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 2], [0, 1, 2]]
    separate = [row.clone() for row in start]
    adams = [torch.optim.Adam([row], lr=1e-2) for row in separate]
    matrix = start.clone()
    state = RowAdam.fresh_state([matrix])
    for clients, gradient in zip(present, gradients, strict=True):
        for i in clients:
            separate[i].grad = gradient[i].clone()
            adams[i].step()
        rows = matrix[clients].clone()
        adam = RowAdam([rows], {name: tensor[clients] for name, tensor in state.items()})
        adam.step([gradient[clients].clone()], 1e-2)
        matrix[clients] = rows
        for name, tensor in adam.state().items():
            state[name][clients] = tensor
    torch.testing.assert_close(matrix, torch.stack(separate), rtol=1e-6, atol=1e-7)
    assert state["step"].tolist() == [5, 3, 5]


def test_learning_rate_is_given_at_each_step() -> None:
    matrix = torch.zeros(1, 2)
    adam = RowAdam([matrix])
    adam.step([torch.ones(1, 2)], 0.5)
    torch.testing.assert_close(matrix, torch.full((1, 2), -0.5))
    adam.step([torch.ones(1, 2)], 0.0)
    torch.testing.assert_close(matrix, torch.full((1, 2), -0.5))
