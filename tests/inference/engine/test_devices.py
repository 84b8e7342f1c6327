import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.engine import devices
from pyro_pfedbayes.inference.engine.devices import choose_engine, resolve_device

CPU = torch.device("cpu")


def test_auto_goes_by_the_amount_of_work(monkeypatch) -> None:
    monkeypatch.setattr(devices, "_has_compiler", lambda: True)
    assert choose_engine("auto", evaluations=100, weights=10**4, device=CPU) == "eager"
    assert choose_engine("auto", evaluations=2000, weights=10**5, device=CPU) == "traced"
    # MNIST at 300 rounds of 20 steps: 10 clients of 79,510 weights.
    assert choose_engine("auto", evaluations=6000, weights=795100, device=CPU) == "compiled"


def test_without_a_compiler_auto_traces_and_compiled_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(devices, "_has_compiler", lambda: False)
    assert choose_engine("auto", evaluations=10**6, weights=10**6, device=CPU) == "traced"
    with pytest.raises(UserError, match="no C\\+\\+ compiler"):
        choose_engine("compiled", evaluations=1, weights=1, device=CPU)


def test_choices_are_obeyed() -> None:
    for choice in ("eager", "traced"):
        assert choose_engine(choice, evaluations=10**9, weights=10**9, device=CPU) == choice


def test_devices_by_name() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UserError, match="device is 'meta'"):
        resolve_device("meta")
