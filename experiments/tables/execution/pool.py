"""Runs side by side, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from pyro_pfedbayes.experiments.tables.declaration.plan import Job
from pyro_pfedbayes.experiments.tables.execution.single_run import Outcome, outcome_of

PATIENCE = 60.0
"""Seconds that a run has to save its state after Ctrl-C."""


class Pool:
    """Makes up to ``places`` runs at once; a single one in this process."""

    def __init__(self, places: int, keep_checkpoints: bool) -> None:
        self.places = places
        self.running: dict[Future[Outcome], Job] = {}
        self._keep = keep_checkpoints
        self._processes: list[subprocess.Popen[str]] = []
        self._threads = ThreadPoolExecutor(places)

    def start(self, job: Job, path: Path) -> None:
        """Begin a run; one of the places is free."""
        if self.places == 1:
            future: Future[Outcome] = Future()
            future.set_result(outcome_of(job.tree, path, self._keep))
        else:
            order = {"tree": job.tree, "path": str(path), "keep_checkpoint": self._keep}
            self._processes.append(_process(json.dumps(order, default=str), self.places))
            future = self._threads.submit(_outcome, self._processes[-1])
        self.running[future] = job

    def wait(self) -> tuple[Job, Outcome]:
        """Wait for the next run that ends."""
        future = next(as_completed(self.running))
        return self.running.pop(future), future.result()

    def close(self) -> None:
        """Interrupt runs, wait until they have saved their states, and end all processes."""
        for process in self._processes:
            process.send_signal(signal.SIGINT)
        wait(self.running, timeout=PATIENCE)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()


def _process(order: str, places: int) -> subprocess.Popen[str]:
    threads = max(1, (os.cpu_count() or 1) // places)
    return subprocess.Popen(
        [sys.executable, "-m", "pyro_pfedbayes.experiments.tables.execution.worker", order],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"OMP_NUM_THREADS": str(threads)} | dict(os.environ),
        # Ctrl-C on the terminal goes to this process alone, which passes it on once.
        start_new_session=True,
    )


def _outcome(process: subprocess.Popen[str]) -> Outcome:
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
    if line:
        return Outcome(**json.loads(line))
    code = process.returncode
    if code >= 0:
        return Outcome("failed", f"its process ended with code {code}")
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return Outcome("failed", f"its process was ended by {signal.Signals(-code).name}{hint}")
