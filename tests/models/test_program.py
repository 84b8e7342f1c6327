import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.roles import Private
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message

SPEC = DataSpec((2,))


def rows(x, mean, y, scale=1.0):
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(mean, scale), obs=y)


def line(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    return rows(x, x @ slope, y, sigma)


def test_sites_are_found_with_their_unconstrained_shapes() -> None:
    def many(x, y=None):
        with pyro.plate("features", 2):
            slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        share = pyro.sample("share", dist.Dirichlet(torch.ones(4)))
        unit = pyro.sample("unit", dist.Beta(2.0, 2.0))
        twice = pyro.deterministic("twice", 2 * unit)
        return rows(x, x @ slope + share[0] + twice, y)

    model = ProgramModel(many, SPEC)
    assert model.declaration.shapes == {"slope": (2,), "share": (3,), "unit": ()}
    values = model.constrain({"share": torch.zeros(3), "unit": torch.zeros(())})
    assert float(values["share"].sum()) == pytest.approx(1.0)
    assert float(values["unit"]) == 0.5


def test_it_begins_at_medians_of_the_priors_or_where_it_is_told() -> None:
    model = ProgramModel(line, SPEC, scale=0.2)
    # 31 draws: the median of HalfNormal is 0.674, with a standard error of 0.13.
    assert float(model.start.loc["sigma"].exp()) == pytest.approx(0.674, abs=0.4)
    assert torch.equal(model.start.scale["slope"], torch.full((2,), 0.2))
    told = ProgramModel(line, SPEC, start={"sigma": 2.0, "slope": [1.0, -1.0]})
    assert float(told.start.loc["sigma"]) == pytest.approx(0.6931, abs=1e-4)
    assert told.start.loc["slope"].tolist() == [1.0, -1.0]


def test_the_same_seed_begins_at_the_same_place_and_leaves_torchs_stream_alone() -> None:
    torch.manual_seed(5)
    first = ProgramModel(line, SPEC).start.loc["slope"]
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(first, ProgramModel(line, SPEC).start.loc["slope"])


@pytest.mark.parametrize(
    ("fn", "outcome", "classes"),
    [
        (dist.Bernoulli(0.3), "class", 2),
        (dist.Categorical(torch.ones(3)), "class", 3),
        (dist.OrderedLogistic(torch.tensor(0.2), torch.tensor([-1.0, 1.0])), "class", 3),
        (dist.Poisson(2.0), "number", 0),
        (dist.StudentT(4.0), "number", 0),
    ],
)
def test_what_an_observation_is_follows_from_its_distribution(fn, outcome, classes) -> None:
    def program(x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.deterministic("unused", shift)
            pyro.sample("y", fn, obs=y)

    model = ProgramModel(program, SPEC)
    assert (model.outcome, model.num_classes) == (outcome, classes)
    predicted = model.predict({"shift": torch.tensor(0.0)}, torch.zeros(5, 2))
    if outcome == "number":
        torch.testing.assert_close(predicted, fn.mean.expand(5))
        return
    assert predicted.shape == (5, classes)
    torch.testing.assert_close(predicted.sum(-1), torch.ones(5))
    support = fn.enumerate_support()
    torch.testing.assert_close(predicted[0], fn.log_prob(support).exp().reshape(-1))


def test_covariates_are_the_last_columns() -> None:
    def counts(x, y=None, *, exposure):
        rate = pyro.sample("rate", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Poisson(rate * exposure), obs=y)

    model = ProgramModel(counts, SPEC)
    assert model.covariates == ("exposure",)
    x = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 5.0]])
    assert model.predict({"rate": torch.tensor(3.0)}, x).tolist() == [6.0, 15.0]
    wrong = message(ProgramModel, counts, DataSpec((1, 8, 8)))
    assert "'counts' takes the columns exposure, which only tables have" in wrong


def nothing(x, y=None):
    return rows(x, x[:, 0], y)


def discrete(x, y=None):
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    return rows(x, kind, y)


def per_example(x, y=None):
    with pyro.plate("data", len(x)):
        local = pyro.sample("local", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(local, 1.0), obs=y)


def unobserved(x, y=None):
    pyro.sample("a", dist.Normal(0.0, 1.0))


def without_plate(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a, 1.0).expand([len(x)]).to_event(1), obs=y)


def two_observed(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("z", dist.Normal(a, 1.0), obs=torch.tensor(1.0))
    return rows(x, a, y)


def not_given(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a, 1.0))


def loose(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a * x[:, 0], 1.0), obs=y)


def vectors(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a * x, 1.0).to_event(1), obs=y)


def parameter(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0)) * pyro.param("b", torch.tensor(1.0))
    return rows(x, a * x[:, 0], y)


def broken(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    return rows(x, x @ a, y)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (nothing, "samples no latent site"),
        (discrete, "site 'kind' is discrete (Bernoulli)"),
        (per_example, "the shape of site 'local' depends on the number of examples"),
        (unobserved, "'unobserved' has no site 'y'"),
        (without_plate, "site 'y' has batch shape [] for 2 examples, in 0 plates; sample it"),
        (not_given, "draws site 'y' whatever y is; give it obs=y"),
        (loose, "in 0 plates; sample it in one plate over the rows of x"),
        (vectors, "site 'y' has event shape [2]; an outcome is one number or one class a row"),
        (parameter, "pyro.param 'b' would not be learnt; make it a pyro.sample site"),
        (two_observed, "site 'z' is observed too; only 'y' may be"),
        (broken, "'broken' does not run on inputs of shape [2, 2]"),
        (lambda x: None, "a program takes x and y"),
    ],
)
def test_programs_that_cannot_be_learnt_are_refused(program, expected) -> None:
    wrong = message(ProgramModel, program, SPEC)
    assert expected in wrong
    assert "Trace Shapes" not in wrong


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"roles": {"slop": "private"}}, "'slop' matches no site; did you mean 'slope'?"),
        ({"roles": {"slope": Private(dist.Normal(0.0, 1.0))}}, "the program says its prior itself"),
        ({"start": {"slop": 1.0}}, "start: there is no site 'slop'"),
        ({"start": {"sigma": -1.0}}, "start: site 'sigma' begins at -1.0, which does not fit"),
        ({"start": {"slope": 1.0}}, "start: site 'slope' begins at 1.0, which does not fit"),
        ({"scale": 0.0}, "scale is 0.0; it must be a positive number"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(options, expected) -> None:
    assert expected in message(ProgramModel, line, SPEC, **options)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (torch.zeros(2, 3), torch.zeros(4), "does not take inputs of shape [3] from toy"),
        (torch.zeros(2, 2), torch.zeros(4, dtype=torch.int64), "observes numbers"),
        (torch.zeros(2, 2), torch.tensor([0.0, float("inf")]), "of row 1 lies outside the support"),
    ],
)
def test_data_that_do_not_fit_are_refused(x, y, expected) -> None:
    assert expected in message(ProgramModel(line, SPEC).check_fits, x, y, "toy")


def test_missing_outcomes_are_refused_or_masked_by_declaration() -> None:
    y = torch.tensor([0.5, float("nan"), -1.0])
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    assert "outcome nan of row 1 lies outside" in message(
        ProgramModel(line, SPEC).check_fits, x, y, "toy"
    )
    model = ProgramModel(line, SPEC, missing="mask")
    model.check_fits(x, y, "toy")
    values = {"slope": torch.tensor([1.0, 2.0]), "sigma": torch.tensor(0.7)}
    program = pyro.poutine.condition(model.client_program, data=values)

    def observed(x, y):
        trace = pyro.poutine.trace(program).get_trace(x, y)
        trace.compute_log_prob()
        return trace.nodes["y"]["log_prob"]

    keep = torch.tensor([0, 2])
    torch.testing.assert_close(observed(x, y)[keep], observed(x[keep], y[keep]))
    assert float(observed(x, y)[1]) == 0.0
    assert "missing is 'drop'" in message(ProgramModel, line, SPEC, missing="drop")


def test_labels_take_the_type_that_the_observation_wants() -> None:
    def coin(x, y=None):
        p = pyro.sample("p", dist.Beta(2.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(p), obs=y)

    model, labels = ProgramModel(coin, DataSpec((2,), num_classes=2)), torch.tensor([0, 1, 1])
    model.check_fits(torch.zeros(2, 2), labels, "toy")
    program = pyro.poutine.condition(model.client_program, data={"p": torch.tensor(0.25)})
    trace = pyro.poutine.trace(program).get_trace(torch.zeros(3, 2), labels)
    trace.compute_log_prob()
    expected = torch.tensor([0.75, 0.25, 0.25]).log()
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected)


def test_a_mixture_of_normals_is_a_real_site() -> None:
    def program(x, y=None):
        parts = dist.Normal(torch.zeros(2), torch.tensor([1.0, 0.01]))
        prior = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), parts)
        slope = pyro.sample("slope", prior.expand([2]).to_event(1))
        return rows(x, x @ slope, y)

    model = ProgramModel(program, SPEC)
    assert model.declaration.shapes == {"slope": (2,)}
    assert model.transform("slope") is None


def test_what_a_program_makes_lies_where_its_data_do() -> None:
    found = []

    def program(x, y=None):
        found.append(torch.zeros(1).device.type)
        return None if x.device.type == "meta" else line(x, y)

    model = ProgramModel(program, SPEC)
    model.client_program(torch.zeros(3, 2, device="meta"))
    assert (found[0], found[-1]) == ("cpu", "meta")
