import pyro
import pyro.distributions as dist
import torch

from pyro_pfedbayes.inference.engine.noise import Noise, NoiseStreams
from pyro_pfedbayes.randomness import generator


def test_a_clients_noise_is_its_own_stream() -> None:
    like, clients = torch.empty(4, 1000), (7, 2, 9, 4)
    noise = NoiseStreams(3, 5, clients, 2, width=1000, like=like, scale=0.5)
    steps = [noise.draw().clone() for _ in range(3)]
    for row, client in enumerate(clients):
        stream = generator(3, "noise", 5, client)
        for step in steps:
            for draw in step:
                assert torch.equal(draw[row], 0.5 * torch.randn(1000, generator=stream))


def test_noise_leaves_other_sites_alone() -> None:
    with Noise(
        {
            "a": torch.tensor(1.0),
            "b": torch.tensor(1.0),
            "c": torch.tensor(1.0),
            "d": torch.tensor(-50.0),
        }
    ):
        assert pyro.sample("a", dist.Normal(2.0, 3.0)) == 5.0
        assert pyro.sample("b", dist.Exponential(1.0)) != 1.0
        assert pyro.sample("d", dist.LogNormal(0.0, 1.0)) > 1e-10
        assert pyro.sample("c", dist.Normal(0.0, 1.0), obs=torch.tensor(9.0)) == 9.0
