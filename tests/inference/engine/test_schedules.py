import pytest

from pyro_pfedbayes.inference.engine.schedules import Phase, learning_rate


@pytest.mark.parametrize(
    ("schedule", "values"),
    [("constant", (1.0, 1.0, 1.0)), ("linear", (1.0, 0.6, 0.2)), ("cosine", (1.0, 0.6, 0.2))],
)
def test_schedules_pass_through_start_middle_and_end(schedule, values) -> None:
    for progress, value in zip((0.0, 0.5, 1.0), values, strict=True):
        assert learning_rate(schedule, 1.0, 0.2, progress) == pytest.approx(value)


def test_cosine_is_flat_at_both_ends() -> None:
    assert learning_rate("cosine", 1.0, 0.0, 0.1) > 0.97
    assert learning_rate("cosine", 1.0, 0.0, 0.9) < 0.03


def test_a_phase_counts_steps_within_rounds() -> None:
    phase = Phase("shared", begun=1, length=4, lr=1.0, schedule="linear")
    assert phase.rate(10, 20, 0.0) == pytest.approx(1 - 1.5 / 4)
    assert not phase.first
