import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.networks import mlp, vgg


def test_the_papers_mlp_has_its_79510_weights() -> None:
    shapes = {name: tuple(w.shape) for name, w in mlp([784, 100, 10]).named_parameters()}
    assert shapes == {
        "fc1.weight": (100, 784),
        "fc1.bias": (100,),
        "head.weight": (10, 100),
        "head.bias": (10,),
    }
    assert sum(w.numel() for w in mlp([784, 100, 10]).parameters()) == 79510


def test_mlp_is_relu_between_affine_layers() -> None:
    net = mlp([3, 4, 5, 2], seed=1)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    w = dict(net.named_parameters())
    hidden = torch.relu(x @ w["fc1.weight"].T + w["fc1.bias"])
    hidden = torch.relu(hidden @ w["fc2.weight"].T + w["fc2.bias"])
    torch.testing.assert_close(net(x), hidden @ w["head.weight"].T + w["head.bias"])


def test_initial_weights_follow_he_and_the_seed() -> None:
    weight = mlp([784, 100, 10], seed=3).get_parameter("fc1.weight")
    # Standard error of a standard deviation from n = 78,400 normal draws: sigma / sqrt(2 n).
    sigma = (2 / 784) ** 0.5
    assert abs(weight.std().item() - sigma) < 5 * sigma / (2 * 78400) ** 0.5
    assert torch.equal(weight, mlp([784, 100, 10], seed=3).get_parameter("fc1.weight"))
    assert not torch.equal(weight, mlp([784, 100, 10], seed=4).get_parameter("fc1.weight"))


def test_the_papers_vgg_halves_five_times() -> None:
    net = vgg()
    shapes = {n: tuple(w.shape) for n, w in net.named_parameters() if n.endswith("weight")}
    assert shapes == {
        "conv1.weight": (16, 3, 3, 3),
        "conv2.weight": (32, 16, 3, 3),
        "conv3.weight": (64, 32, 3, 3),
        "conv4.weight": (128, 64, 3, 3),
        "conv5.weight": (128, 128, 3, 3),
        "head.weight": (10, 128),
    }
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: mlp([10]), "at least an input and an output"),
        (lambda: mlp([10, 0, 2]), "all >= 1"),
        (lambda: vgg([8, "X"]), "neither a number of channels nor 'M'"),
        (lambda: vgg([8, "M", "M", "M"], image_size=4), "pools 4x4 images to nothing"),
    ],
)
def test_impossible_networks_are_refused(build, words) -> None:
    with pytest.raises(UserError, match=words):
        build()
