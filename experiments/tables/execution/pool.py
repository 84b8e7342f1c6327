"""Runs side by side, in processes that make one run after the other."""

from __future__ import annotations

import contextlib
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
        self._idle: list[subprocess.Popen[str]] = []
        self._threads = ThreadPoolExecutor(places)

    def start(self, job: Job, path: Path) -> None:
        """Begin a run; one of the places is free."""
        if self.places == 1:
            future: Future[Outcome] = Future()
            future.set_result(outcome_of(job.tree, path, self._keep))
        else:
            order = {"tree": job.tree, "path": str(path), "keep_checkpoint": self._keep}
            process = self._idle.pop() if self._idle else self._process()
            future = self._threads.submit(self._outcome, process, json.dumps(order, default=str))
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
        for process in self._processes:
            with process:  # waits for its end and closes its pipes
                pass

    def _process(self) -> subprocess.Popen[str]:
        threads = max(1, (os.cpu_count() or 1) // self.places)
        process = subprocess.Popen(
            [sys.executable, "-m", "pyro_pfedbayes.experiments.tables.execution.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"OMP_NUM_THREADS": str(threads)} | dict(os.environ),
            # Ctrl-C on the terminal goes to this process alone, which passes it on once.
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def _outcome(self, process: subprocess.Popen[str], order: str) -> Outcome:
        """Have a process make a run; one that ends over it gets no other."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            self._idle.append(process)
            return Outcome(**json.loads(line))
        code = process.wait()
        if code >= 0:
            return Outcome("failed", f"its process ended with code {code}")
        hint = "; out of memory?" if -code == signal.SIGKILL else ""
        return Outcome("failed", f"its process was ended by {signal.Signals(-code).name}{hint}")
