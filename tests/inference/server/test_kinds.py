import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.server.kinds import discover_kinds
from pyro_pfedbayes.inference.server.rules import closed_form


def kinds_of_clients(weights: int = 50, noise: float = 0.3):
    stream = torch.Generator().manual_seed(0)
    truth = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    centres = torch.randn(3, weights, generator=stream)
    loc = centres[truth] + noise * torch.randn(8, weights, generator=stream)
    return truth, loc, torch.full_like(loc, 0.5)


def test_separated_kinds_are_found_and_numbered_by_first_client() -> None:
    truth, loc, scale = kinds_of_clients()
    assert torch.equal(discover_kinds(loc, scale, 3), truth)
    # Another order of clients finds the same groups.
    order = torch.tensor([7, 5, 3, 1, 0, 2, 4, 6])
    found = discover_kinds(loc[order], scale[order], 3)
    together = found[:, None] == found[None]
    expected = truth[order][:, None] == truth[order][None]
    assert torch.equal(together, expected)


def test_scales_alone_can_tell_kinds_apart() -> None:
    loc = torch.zeros(4, 200)
    scale = torch.tensor([0.1, 1.0, 0.1, 1.0])[:, None].expand(4, 200)
    assert discover_kinds(loc, scale, 2).tolist() == [0, 1, 0, 1]


def test_a_client_far_from_all_others_does_not_hide_the_kinds() -> None:
    """All clients differ by the noise of many weights, one of them more; the two kinds differ by less than that."""
    stream = torch.Generator().manual_seed(3)
    truth = torch.tensor([0, 1] * 5)
    loc = torch.randn(10, 5000, generator=stream)
    loc[3] *= 1.4
    loc += 0.8 * truth[:, None] * torch.randn(5000, generator=stream)
    assert torch.equal(discover_kinds(loc, torch.ones_like(loc), 2), truth)


def test_grouping_is_a_fixed_point_that_lowers_the_mean_kl() -> None:
    _, loc, scale = kinds_of_clients(noise=2.0)
    objective = {}
    for kinds in (1, 2, 3):
        group = discover_kinds(loc, scale, kinds)
        centres = [
            closed_form([(loc[group == k], scale[group == k], torch.ones(int((group == k).sum())))])
            for k in range(kinds)
        ]
        kl = torch.stack(
            [
                (torch.log(s / scale) + 0.5 * ((scale / s) ** 2 + ((loc - m) / s) ** 2 - 1)).sum(-1)
                for m, s in centres
            ]
        )
        assert torch.equal(kl.argmin(0), group)
        objective[kinds] = kl.amin(0).mean()
    assert objective[3] < objective[2] < objective[1]


def test_more_kinds_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="kinds is 3, but 2 clients can form 1 to 2 groups"):
        discover_kinds(torch.zeros(2, 1), torch.ones(2, 1), 3)
