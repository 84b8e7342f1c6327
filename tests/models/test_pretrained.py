import pytest
import torch
from safetensors.torch import save_file

from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.pretrained import pretrained
from tests.helpers import message


@pytest.mark.parametrize("kind", ["mapping", "safetensors", "torch"])
def test_weights_become_the_first_means(kind, tmp_path) -> None:
    trained, fresh = mlp([4, 8, 3], seed=1), mlp([4, 8, 3], seed=2)
    before = fresh.fc1.weight.detach().clone()
    source = trained.state_dict()
    if kind == "safetensors":
        save_file(source, tmp_path / "w.safetensors")
    if kind == "torch":
        torch.save(source, tmp_path / "w.pt")
    files = {
        "mapping": source,
        "safetensors": tmp_path / "w.safetensors",
        "torch": tmp_path / "w.pt",
    }
    model = BayesianModel(pretrained(fresh, files[kind]), Categorical(3))
    for name, weight in trained.named_parameters():
        assert torch.equal(model.prior.loc[name], weight)
    assert torch.equal(fresh.fc1.weight, before)


def test_weights_of_another_network_are_refused(tmp_path) -> None:
    network, state = mlp([4, 8, 3]), mlp([4, 8, 3]).state_dict()
    other = mlp([4, 9, 3]).state_dict()
    assert "'fc1.weight' has shape [9, 4], the network's has [8, 4]" in message(
        pretrained, network, other
    )
    missing = {("fc1.wieght" if k == "fc1.weight" else k): v for k, v in state.items()}
    wrong = message(pretrained, network, missing)
    assert "there is no weight 'fc1.weight'; did you mean 'fc1.wieght'?" in wrong
    assert "the network has no weight 'extra'" in message(
        pretrained, network, {**state, "extra": torch.ones(1)}
    )
    assert "no such file" in message(pretrained, network, tmp_path / "none.pt")
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    assert "bad.pt holds no state_dict that can be read" in message(
        pretrained, network, tmp_path / "bad.pt"
    )
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    assert "bad.safetensors holds no state_dict" in message(
        pretrained, network, tmp_path / "bad.safetensors"
    )
    torch.save([1, 2], tmp_path / "list.pt")
    assert "list.pt holds a list; give a state_dict" in message(
        pretrained, network, tmp_path / "list.pt"
    )
