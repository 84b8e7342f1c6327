"""Measures by client equal the measures of each client's own rows; what is not defined is NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.by_client import CLASS_MEASURES, class_scores, measure_clients
from pyro_pfedbayes.measures.detection import auroc
from pyro_pfedbayes.measures.interval_scores import crps
from pyro_pfedbayes.measures.resampling import bootstrap
from pyro_pfedbayes.measures.scores import accuracy, brier_score, negative_log_likelihood

NAN = float("nan")


def predictions(n: int = 200, clients: int = 5) -> tuple[dict[str, Tensor], Tensor]:
    stream = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(n, 3, generator=stream)).softmax(-1)
    y = torch.multinomial(probs, 1, generator=stream)[:, 0]
    return {"probs": probs, "y": y}, torch.randint(clients, (n,), generator=stream)


def test_every_measure_is_that_of_the_clients_own_rows() -> None:
    columns, client = predictions()
    found = measure_clients(CLASS_MEASURES, columns, client)
    assert found.names == ("0", "1", "2", "3", "4")
    assert found.count.tolist() == torch.bincount(client).tolist()
    for name, measure in CLASS_MEASURES.items():
        assert found.pooled[name] == pytest.approx(float(measure(columns)), abs=1e-6), name
        for i in range(5):
            own = {key: column[client == i] for key, column in columns.items()}
            assert found.by_client[name][i].item() == pytest.approx(
                float(measure(own)), abs=1e-6
            ), name
        assert len(set(found.by_client[name].tolist())) > 1, name


def test_unknown_outcomes_are_left_out() -> None:
    columns, client = predictions()
    whole = measure_clients(CLASS_MEASURES, {k: c[50:] for k, c in columns.items()}, client[50:])
    columns["y"][:50] = -1
    columns["probs"][:50] = NAN  # nobody looks at these
    part = measure_clients(CLASS_MEASURES, columns, client)
    assert part.pooled == whole.pooled
    assert part.count.sum() == 150
    outcome = torch.tensor([1.0, NAN, 3.0])
    mean = measure_clients({"m": lambda c: c["y"].mean()}, {"y": outcome}, torch.tensor([0, 0, 1]))
    assert mean.pooled == {"m": 2.0}
    assert mean.count.tolist() == [1, 1]


def test_a_client_without_examples_has_no_figures_and_no_measure_is_called_for_it() -> None:
    called: list[int] = []

    def count(columns: object) -> float:
        called.append(1)
        return 0.0

    found = measure_clients(
        {"m": count}, {"y": torch.tensor([1, -1])}, torch.tensor([1, 2]), names=["a", "b", "c"]
    )
    assert found.by_client["m"].isnan().tolist() == [True, False, True]
    assert len(called) == 2  # client b, and pooled
    none = measure_clients(
        CLASS_MEASURES,
        {"probs": torch.zeros(0, 3), "y": torch.zeros(0).long()},
        torch.zeros(0).long(),
        clients=2,
    )
    assert all(math.isnan(v) for v in none.pooled.values())
    assert all(bool(v.isnan().all()) for v in none.by_client.values())
    assert none.count.tolist() == [0, 0]


def test_one_example_one_class_all_right_all_wrong() -> None:
    probs = torch.tensor([[0.9, 0.1], [1.0, 0.0], [0.0, 1.0], [0.3, 0.7], [0.2, 0.8]])
    columns = {"probs": probs, "y": torch.tensor([0, 0, 0, 0, 0])}
    found = measure_clients(CLASS_MEASURES, columns, torch.tensor([0, 1, 2, 2, 2]))
    assert found.by_client["accuracy"].tolist() == [1.0, 1.0, 0.0]
    assert found.by_client["ece"][1:].tolist() == pytest.approx([0.0, 2.5 / 3])
    assert bool(torch.stack(list(found.by_client.values())).isfinite().all())


def test_a_measure_that_is_not_defined_for_one_client_is_nan_there_alone() -> None:
    columns = {"score": torch.tensor([0.1, 0.9, 0.5]), "seen": torch.tensor([True, False, True])}

    def unseen(c: dict[str, Tensor]) -> float:
        return auroc(c["score"][c["seen"]], c["score"][~c["seen"]])

    found = measure_clients({"auroc": unseen}, columns, torch.tensor([0, 0, 1]))  # type: ignore[dict-item]
    assert found.by_client["auroc"][0] == 1.0
    assert math.isnan(found.by_client["auroc"][1].item())
    assert found.pooled["auroc"] == 1.0


def test_numbers_from_draws_turned_round() -> None:
    stream = torch.Generator().manual_seed(0)
    draws, y = torch.randn(20, 6, generator=stream), torch.randn(6, generator=stream)
    client = torch.tensor([0, 1, 0, 1, 0, 1])
    found = measure_clients(
        {"crps": lambda c: crps(c["draws"].T, c["y"]).mean()}, {"draws": draws.T, "y": y}, client
    )
    for i in range(2):
        own = crps(draws[:, client == i], y[client == i]).mean().item()
        assert found.by_client["crps"][i].item() == pytest.approx(own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_average_to_the_measures(dtype: torch.dtype) -> None:
    columns, client = predictions()
    probs, y = columns["probs"].to(dtype), columns["y"]
    probs[0] = torch.tensor([1.0, 0.0, 0.0])
    y[0] = 1  # certain and wrong
    scores = class_scores(probs, y)
    for name, measure in (
        ("accuracy", accuracy),
        ("nll", negative_log_likelihood),
        ("brier", brier_score),
    ):
        assert scores[name].mean().item() == pytest.approx(measure(probs, y).item(), abs=1e-6)
        estimate = bootstrap(scores[name], client, resamples=10).estimate
        assert estimate == pytest.approx(measure(probs, y).item(), abs=1e-6)


def test_nan_predictions_are_refused_by_client_and_row() -> None:
    columns, _ = predictions(6, 1)
    columns["probs"][4, 1] = columns["probs"][5, 0] = NAN
    client = torch.tensor([0, 1, 1, 0, 1, 0])
    message = "'probs' is NaN at row 4, an example of client north, and 1 more$"
    with pytest.raises(UserError, match=message):
        measure_clients(CLASS_MEASURES, columns, client, names=["south", "north"])
    table = {"variance": torch.tensor([1.0, NAN])}
    measures = {"v": lambda c: c["variance"].mean()}
    found = measure_clients(measures, table, torch.tensor([0, 1]), nan_ok=("variance",))
    assert found.by_client["v"].isnan().tolist() == [False, True]


def test_what_is_refused() -> None:
    columns, client = predictions(4, 2)
    with pytest.raises(UserError, match="client 0, accuracy: broken"):
        measure_clients({"accuracy": _broken}, columns, torch.zeros(4).long())
    with pytest.raises(UserError, match="returned \\[4\\]"):
        measure_clients({"y": lambda c: c["y"]}, columns, torch.zeros(4).long())
    with pytest.raises(UserError, match="column 'y' has shape"):
        measure_clients({}, {"y": torch.zeros(3)}, client)
    with pytest.raises(UserError, match="client 5 is not one of 0 to 1"):
        measure_clients({}, columns, torch.tensor([0, 1, 5, 0]), clients=2)
    with pytest.raises(UserError, match="client -1 is not one of"):
        measure_clients({}, columns, torch.tensor([0, 1, -1, 0]))
    with pytest.raises(UserError, match="1 names for 2 clients"):
        measure_clients({}, columns, client, clients=2, names=["a"])
    with pytest.raises(UserError, match="client must hold integers"):
        measure_clients({}, columns, client.float())


def _broken(columns: object) -> float:
    raise UserError("broken")


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    columns, client = predictions()
    there = measure_clients(
        CLASS_MEASURES, {k: c.cuda() for k, c in columns.items()}, client.cuda()
    )
    here = measure_clients(CLASS_MEASURES, columns, client)
    assert there.pooled == pytest.approx(here.pooled, abs=1e-6)
