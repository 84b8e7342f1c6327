"""Predictions for new inputs from a run's checkpoint; the training data are not needed."""

from __future__ import annotations

from pathlib import Path

import torch

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.runs.build import build_model
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.experiments.runs.inputs import InputRule, read_inputs
from pyro_pfedbayes.experiments.runs.lifecycle import checked_state, compare_settings
from pyro_pfedbayes.experiments.runs.prediction_files import (
    FilePredictions,
    class_predictions,
    number_predictions,
)
from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.inference.algorithm import Algorithm
from pyro_pfedbayes.inference.engine.devices import resolve_device
from pyro_pfedbayes.inference.federation.state import gather_rows
from pyro_pfedbayes.inference.predictive.accumulators import ClassAccumulator, NumberSummary
from pyro_pfedbayes.inference.predictive.draws import (
    CHUNK,
    number_predictive,
    predictive_draws,
    predictive_streams,
)

GLOBAL = "global"
_MOST_NAMES = 5  # that a message lists


def predict_file(
    folder: RunFolder,
    client: str,
    path: Path,
    *,
    draws: int | None = None,
    device: str | None = None,
) -> FilePredictions:
    """Predict the inputs of an ``.npz`` by the model of a client (name or number) or by the global one of a run.

    Inputs are raw, like the training data, beside any columns that the model takes; numbers come in their own units.
    """
    config = folder.config()
    place = resolve_device(device or config.run.device)
    state, meta = folder.load()
    compare_settings(folder, config, meta)
    try:
        rule = InputRule.from_json(meta["data"]["inputs"])
        classes, names = tuple(meta["data"]["classes"]), tuple(meta["data"]["clients"])
    except (KeyError, TypeError) as problem:
        raise UserError(f"checkpoint {folder.checkpoint} is damaged: {problem}") from problem
    model = build_model(config, rule.shape, len(classes)).moved(place)
    state = checked_state(state, folder, config, model, len(names))
    number = None if client == GLOBAL else _client_number(client, names)
    x = read_inputs(path, rule, model.covariates).to(place)
    algorithm: Algorithm = config.algorithm
    if number is None:
        belief = algorithm.global_belief(model, state.server)
    else:
        rows = gather_rows(algorithm, model, state, [number])
        belief = algorithm.personal_belief(model, rows).client(0)
    used = draws or config.run.eval_draws
    who = "global model" if number is None else f"personal model of client {names[number]}"
    title = f"{who} after round {state.round}, {counted(used, 'draw')}"
    if classes:
        streams = predictive_streams(config.run.seed, place)
        running = ClassAccumulator()
        for probs in predictive_draws(model, belief, x, used, streams.weights):
            running.add(probs)
        found = running.result()
        return class_predictions(title, classes, found.probs.cpu(), found.aleatoric.cpu())
    pieces = ((part, part.new_full((len(part),), torch.nan)) for part in x.split(CHUNK))
    summaries = number_predictive(model, belief, pieces, draws=used, seed=config.run.seed)
    return number_predictions(title, NumberSummary.joined(list(summaries)), rule.target)


def _client_number(client: str, names: tuple[str, ...]) -> int:
    if client in names:
        return names.index(client)
    if names == tuple(str(i) for i in range(len(names))):
        # Such as 03 for 3.
        if client.isdecimal() and int(client) < len(names):
            return int(client)
        raise UserError(
            f"no client {client!r}: give a number from 0 to {len(names) - 1}, or 'global'"
        )
    # With names such as 10, 20, 30, a number could mean a name or a place.
    some = ", ".join(map(repr, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
    raise UserError(
        f"no client {client!r}{nearest(client, names)} (give a name: {some}; or 'global')"
    )
