"""Trying all methods out on their data before anything runs: what only data and model can tell is found here."""

from __future__ import annotations

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.resolve import resolve
from pyro_pfedbayes.experiments.config.sections import Config, DataSection, parse_config
from pyro_pfedbayes.experiments.runs.build import build_data, build_federation, build_partition
from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, mistakes_at
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule
from pyro_pfedbayes.inference.engine.devices import resolve_device


def try_out(
    schedule: Schedule, where: str = "", *, retry: bool = False, download: bool = True
) -> list[str]:
    """Deal the data with every seed, and build and begin each point of each method that is still to be run.

    Nothing is trained and nothing is written. A run that cannot begin would fail; this way the file can be mended
    before the others have taken hours.

    Args:
        schedule: What is left.
        where: How messages begin, such as ``"mine.toml: "``.
        retry: Whether runs that failed will be made anew.
        download: Whether data may be downloaded; without, what needs them is passed over and told, a line each.
    """
    left, folder = schedule.left(), schedule.folder
    by_data: dict[str, list[Cell]] = {}
    for cell in schedule.plan.cells:
        if any(
            job.id in left or (retry and folder.failure(job.id) is not None) for job in cell.jobs
        ):
            by_data.setdefault(cell.entry.label, []).append(cell)
    skipped: dict[str, list[str]] = {}
    for label, cells in by_data.items():
        sections = list(dict.fromkeys(_config(job).data for cell in cells for job in cell.jobs))
        try:
            if not download and not sections[0].name.endswith(".npz"):
                load_dataset(sections[0].name, data_dir=sections[0].dir, download=False)
        except UserError as problem:
            skipped.setdefault(str(problem), []).append(label)
            continue
        data = _deal(sections, f"{where}data '{label}'")
        for cell in cells:
            _try_cell(cell, data, where)
    return [
        f"not tried out on {', '.join(labels)}: {problem}" for problem, labels in skipped.items()
    ]


def _config(job: Job) -> Config:
    return resolve(parse_config(job.tree))


def _deal(sections: list[DataSection], where: str) -> FederatedData:
    """The data as the first section deals them; the others, which differ in their seeds, are tried as well."""
    place = where
    try:
        data, _ = build_data(sections[0])
        for section in sections[1:]:
            place = f"{where}, seed {section.seed}"
            build_partition(section, data.dataset)
    except UserError as problem:
        raise UserError(f"{place}: {problem}") from None
    return data


def _try_cell(cell: Cell, data: FederatedData, where: str) -> None:
    """All that happens before the first round of the runs of each point."""
    for point, final, tried in cell.beginnings:
        with mistakes_at(cell, point, where):
            config = _config(final)
            resolve_device(config.run.device)
            # On the CPU, as runs side by side need the memory of the device.
            run = config.run.model_copy(update={"device": "cpu"})
            cpu = Config(config.data, config.model, config.algorithm, run)
            federation = build_federation(cpu, data)
            server = federation.initial_state().server
            federation.algorithm.client_init(federation.model, server, 1)
            lengths = sorted({final.rounds, tried.rounds})
            for rounds in lengths:
                federation.algorithm.check(rounds, data.num_clients)
            federation.engine_for(lengths[-1])
