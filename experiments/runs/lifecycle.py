"""Running an experiment into a folder: begin, carry on, finish."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyro_pfedbayes.errors import Interrupted, UserError
from pyro_pfedbayes.experiments.config.model_files import own_files
from pyro_pfedbayes.experiments.config.sections import Config
from pyro_pfedbayes.experiments.runs.build import Experiment, build_experiment, fingerprint
from pyro_pfedbayes.experiments.runs.folder import RunFolder, writing
from pyro_pfedbayes.experiments.runs.lock import locked
from pyro_pfedbayes.experiments.runs.progress import Progress
from pyro_pfedbayes.experiments.runs.target_scaling import far_outcomes
from pyro_pfedbayes.inference.federation.loop import DivergenceWarning, Result, RoundReport
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.inference.server.screening import screened_rounds
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.versions import versions


def default_folder(label: str) -> Path:
    """A new folder under ``runs/``, named by what runs and by the time."""
    stem = Path("runs") / f"{label}-{datetime.now():%Y%m%d-%H%M%S}"
    path, count = stem, 1
    while path.exists():
        count += 1
        path = stem.with_name(f"{stem.name}-{count}")
    return path


def begin(
    experiment: Experiment, path: Path, progress: Progress, *, picture: bool = True
) -> dict[str, Any]:
    """Make the folder, run from the first round to the last, write what a run leaves, and return the summary."""
    federation = experiment.federation
    state, meta = federation.initial_state(), experiment.description() | {"dropped": {}}

    def draw(file: Path) -> None:
        from pyro_pfedbayes.data.partitions.schemes import plot_partition

        if picture:
            figure = plot_partition(experiment.data.partition, experiment.data.dataset)
            figure.savefig(file, dpi=120)

    files = own_files(experiment.config.model.name)
    folder = RunFolder.create(path, experiment.config, state, meta, draw, files)
    warning = far_outcomes(federation.model, federation.data)
    if warning:
        progress.note(warning)
    with locked(folder.path):
        return _Run(experiment, folder, state, meta, progress).to_the_end()


def carry_on(folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Run from the last checkpoint to the end."""
    with locked(folder.path):
        experiment, state, meta = reopen(folder)
        folder.rewrite_metrics(state.history)
        return _Run(experiment, folder, state, meta, progress).to_the_end()


def reopen(
    folder: RunFolder, device: str | None = None
) -> tuple[Experiment, FederationState, dict[str, Any]]:
    """Build a run's parts once more and read its last state; ``device``, if not where the run computed."""
    config = folder.config()
    if device is not None:
        config = dataclasses.replace(config, run=config.run.model_copy(update={"device": device}))
    state, meta = folder.load()
    compare_settings(folder, config, meta)
    experiment = build_experiment(config)
    if fingerprint(experiment.data) != meta["data"].get("fingerprint"):
        raise UserError(
            f"data set {experiment.data.dataset.name!r} is not what it was when {folder.path} began: "
            "its examples, or how they are dealt to clients, have changed"
        )
    model, clients = experiment.federation.model, experiment.data.num_clients
    return experiment, checked_state(state, folder, config, model, clients), meta


def checked_state(
    state: FederationState, folder: RunFolder, config: Config, model: DeclaredModel, clients: int
) -> FederationState:
    """The state, if it fits the model and the number of clients; the server's tensors on the model's device."""
    algorithm = config.algorithm
    start = algorithm.init(model)
    row = {name: stacked[0] for name, stacked in algorithm.client_init(model, start, 1).items()}
    owners = {"the server": (start, state.server)}
    owners |= {f"client {i}": (row, found) for i, found in state.clients.items()}
    problems = [
        f"{name} of {owner} is {list(found[name].shape)}, the model wants {list(tensor.shape)}"
        for owner, (wanted, found) in owners.items()
        for name, tensor in wanted.items()
        # Which tensors beside the belief there are depends on the phase of a run.
        if name in found and found[name].shape != tensor.shape
    ]
    problems += [f"it has a client {i}" for i in state.clients if not 0 <= i < clients]
    if not 0 <= state.round <= config.run.rounds:
        problems.append(f"it is of round {state.round}")
    try:
        algorithm.global_belief(model, state.server)
        for found in state.clients.values():
            algorithm.personal_belief(model, {k: v[None] for k, v in found.items()})
    except (KeyError, RuntimeError) as problem:
        problems.append(f"its tensors make no belief ({problem})")
    if problems:
        raise UserError(
            f"checkpoint {folder.checkpoint} does not belong to this run: {problems[0]}"
        )
    device = model.start.device
    server = {name: tensor.to(device) for name, tensor in state.server.items()}
    return dataclasses.replace(state, server=server)


def compare_settings(folder: RunFolder, config: Config, meta: Mapping[str, Any]) -> None:
    """Refuse a ``config.toml`` that is not the one that the checkpoint was made with.

    Where the data lie and where to compute may change; keys that only one of the two knows, as after an update of the
    package, are passed over.
    """
    free = {("data", "name"), ("data", "dir"), ("run", "device"), ("run", "chunk")}
    saved = meta["config"]
    for section, values in config.tree().items():
        for key, value in values.items():
            before = saved.get(section, {}).get(key, value)
            if (section, key) == ("model", "name"):
                # Of a file the run has its own copy.
                value, before = (str(v).rpartition("/")[2] for v in (value, before))
            if before != value and (section, key) not in free:
                raise UserError(
                    f"{folder.config_file}: {section}.{key} is {value!r}, but the run began with {before!r}; "
                    "put it back, or begin a new run"
                )


@dataclass
class _Run:
    """A run under way; called after each round: shows it, writes its line, saves a checkpoint when one is due."""

    experiment: Experiment
    folder: RunFolder
    state: FederationState
    meta: dict[str, Any]
    progress: Progress

    def __post_init__(self) -> None:
        self.saved = self.state.round  # of the checkpoint in force
        self.dropped = Counter({int(k): int(v) for k, v in self.meta["dropped"].items()})

    def __call__(self, report: RoundReport) -> None:
        self.state = report.state
        for client in report.dropped:
            if not self.dropped[client]:
                self.progress.note(
                    f"warning: client {client} diverged in round {report.index} (numbers are not finite); "
                    "its update is left out, as further ones will be"
                )
            self.dropped[client] += 1
        self.progress.round(report)
        if report.evaluation is not None:
            self.folder.append_metrics(report.evaluation)
        every = self.experiment.config.run.checkpoint_every
        if report.index % every == 0 or report.index == report.total:
            self.save()

    def save(self) -> None:
        """Save the state reached, if it is not yet."""
        if self.saved < self.state.round:
            self.folder.save(self.state, self.meta | {"dropped": _by_client(self.dropped)})
            self.saved = self.state.round

    def to_the_end(self) -> dict[str, Any]:
        """Make the rounds that are left, write what a run leaves, and return the summary."""
        rounds, path = self.experiment.config.run.rounds, self.folder.path
        hint = f"`pfedbayes resume {path}` carries on"
        try:
            with self.progress.running(self.state.round, rounds), warnings.catch_warnings():
                # `__call__` warns of diverging clients, once each.
                warnings.simplefilter("ignore", DivergenceWarning)
                result = self.experiment.federation.run(rounds, state=self.state, on_round=self)
            _write_posterior(self.experiment, self.folder, result.state, self.progress)
            summary = _summary(self.experiment, result, self.dropped)
            self.folder.write_summary(summary)
            return summary
        except KeyboardInterrupt:
            self.save()
            raise Interrupted(f"interrupted after round {self.saved}: {hint}") from None
        except UserError as problem:
            # A full disk can be mended; a run that diverges would do so again.
            if not self.saved:
                raise UserError(f"{problem} (no round is saved in {path})") from problem
            then = f": {hint}" if problem.__cause__ is not None else f" in {path}"
            raise UserError(f"{problem} (saved up to round {self.saved}{then})") from problem


def _by_client(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts as JSON has them."""
    return {str(client): count for client, count in sorted(counts.items())}


def _summary(experiment: Experiment, result: Result, dropped: Mapping[int, int]) -> dict[str, Any]:
    """What ``summary.json`` holds."""
    config, data = experiment.config, experiment.data
    screened = screened_rounds(result.state.server)
    return {
        "algorithm": config.algorithm.name,
        "data": data.dataset.name,
        "split": config.data.split or data.partition.scheme,
        "seed": config.run.seed,
        "clients": data.num_clients,
        **result.summary,
        "weights": experiment.federation.model.declaration.num_weights,
        "device": config.run.device,
        "engine": config.run.engine,
        "dropped": _by_client(dropped),
        **({} if screened is None else {"screened": _by_client(screened)}),
        "versions": versions(),
    }


def _write_posterior(
    experiment: Experiment, folder: RunFolder, state: FederationState, progress: Progress
) -> None:
    """Write ``posterior.nc``, if its draws are wanted and there are test examples."""
    config = experiment.config
    if not config.run.posterior_draws or not any(map(len, experiment.data.partition.test)):
        return
    from pyro_pfedbayes.datatree.tree import save_datatree
    from pyro_pfedbayes.experiments.runs.posterior_file import experiment_datatree

    try:
        tree = experiment_datatree(experiment, state, note=progress.note)
    except UserError as problem:
        # A network that overflows on some test example is no reason to lose the rest of a run.
        progress.note(f"warning: no {folder.posterior.name} is written: {problem}")
        return
    with writing(folder.posterior):
        save_datatree(tree, folder.posterior)
