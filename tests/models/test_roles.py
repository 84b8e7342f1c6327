import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_pfedbayes.families import FullCovariance, MeanField, MeanFieldNormal
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.roles import Private, Role, assign_roles
from tests.helpers import message, tiny_model

NAMES = ["fc1.weight", "fc1.bias", "head.weight", "head.bias"]


def kinds(roles):
    return {name: role.kind for name, role in assign_roles(NAMES, roles).items()}


def test_what_no_pattern_matches_is_shared() -> None:
    assert set(kinds(None).values()) == {"shared"}
    found = kinds({"head.*": "private", "fc1.bias": Role("point")})
    assert found == dict(zip(NAMES, ("shared", "point", "private", "private"), strict=True))


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"haed.*": "private"}, "pattern 'haed.*' matches no site (there are: fc1.weight,"),
        ({"head.*": "private", "*.bias": "point"}, "'head.bias' is matched by both 'head.*' and"),
        ({"head.*": "privat"}, "is 'privat'; did you mean 'private'?; give one of shared"),
        (["head.*"], "roles is ['head.*']; give roles by name pattern"),
        ({"head.*": 3}, "is 3; give one of shared, private, point"),
    ],
)
def test_roles_that_cannot_be_meant_are_refused(roles, expected) -> None:
    assert expected in message(assign_roles, NAMES, roles)


def test_a_model_of_points_alone_is_refused() -> None:
    assert "nothing to be Bayesian about" in message(tiny_model, roles={"*": "point"})


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (dist.Normal(torch.zeros(2), 1.0), "prior of 'head.weight' has shape [2]"),
        (dist.Poisson(1.0), "prior of 'head.weight' is discrete"),
        ("normal", "is 'normal'; give a distribution, or a function"),
    ],
)
def test_priors_that_do_not_fit_a_weight_are_refused(prior, expected) -> None:
    assert expected in message(tiny_model, roles={"head.*": Role("private", prior)})


def test_a_hierarchical_prior_brings_its_own_sites_once() -> None:
    def prior():
        return dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(1.0)))

    model = tiny_model(roles={"head.*": Private(prior)})
    declared = model.declaration
    assert declared.shapes["tau"] == ()
    assert declared.roles["tau"].kind == "shared"
    assert list(declared.private.shapes) == ["head.weight", "head.bias"]
    # tau begins at a typical draw of its prior: the median of a half-normal is 0.67.
    assert float(model.start.loc["tau"].exp()) == pytest.approx(0.67, abs=0.4)
    own = tiny_model(roles={"head.*": Private(prior), "tau": "private"}).declaration
    assert list(own.private.shapes) == ["head.weight", "head.bias", "tau"]


def test_the_program_of_one_client_draws_from_the_priors_declared() -> None:
    private, first = dist.Normal(3.0, 1e-6), dist.Laplace(-2.0, 1e-6)
    model = BayesianModel(
        mlp([4, 5, 3]), Categorical(3), roles={"head.*": Private(private)}, first_prior=first
    )
    trace = pyro.poutine.trace(model.client_program).get_trace(torch.zeros(6, 4))
    values = {name: trace.nodes[name]["value"] for name in model.weight_shapes}
    assert all(((values[k] - 3).abs() < 1e-4).all() for k in ("head.weight", "head.bias"))
    assert all(((values[k] + 2).abs() < 1e-4).all() for k in ("fc1.weight", "fc1.bias"))
    assert trace.nodes["y"]["value"].shape == (6,)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"server": MeanFieldNormal()}, "server is MeanFieldNormal(); give a server family, such"),
        ({"server": FullCovariance}, "server is the class FullCovariance; give a server family"),
        ({"server": "laplace"}, "server is 'laplace'; give a server family"),
        ({"guide": MeanField()}, "guide is MeanField(); give a guide family, such as"),
        (
            {"roles": {"head.*": "private"}, "private_guide": "AutoNormal"},
            "private_guide is 'AutoNormal'; give an AutoGuide class",
        ),
    ],
)
def test_what_is_no_family_is_refused(options, expected) -> None:
    assert expected in message(tiny_model, **options)
