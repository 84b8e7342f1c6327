"""Several processes that make runs side by side."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyro_pfedbayes.experiments.tables.declaration.plan import Job
from pyro_pfedbayes.experiments.tables.execution.single_run import Outcome, outcome_of

PATIENCE = 60.0
"""Seconds that a run has to save its state after Ctrl-C."""


class Runner(Protocol):
    """What makes runs.

    Attributes:
        places: How many at once.
    """

    places: int

    def start(self, job: Job, path: Path) -> None:
        """Begin a run; one of the places is free."""
        ...

    def wait(self) -> tuple[Job, Outcome]:
        """Wait for the next run that ends."""
        ...

    def close(self) -> None:
        """Stop what still runs, its states saved."""
        ...


class Alone:
    """One run at a time, in this process.

    Args:
        keep_checkpoints: See `bring_to_end`.
    """

    places = 1

    def __init__(self, keep_checkpoints: bool) -> None:
        self._keep = keep_checkpoints
        self._next: tuple[Job, Path] | None = None

    def start(self, job: Job, path: Path) -> None:
        """Remember it."""
        self._next = (job, path)

    def wait(self) -> tuple[Job, Outcome]:
        """Make it."""
        assert self._next is not None
        job, path = self._next
        return job, outcome_of(job.tree, path, self._keep)

    def close(self) -> None:
        """Nothing runs."""


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    reader: threading.Thread = field(init=False)
    job: Job | None = None

    def order(self, line: str) -> None:
        """Send a line; a process that is gone is found out by whoever waits for its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """Close its input, upon which it ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def bury(self) -> int:
        """Clear away what is left of a process that ended; return its exit code."""
        code = self.process.wait()
        self.dismiss()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Pool:
    """Processes of their own, which share the machine's cores.

    Args:
        places: How many.
        keep_checkpoints: See `bring_to_end`.
    """

    def __init__(self, places: int, keep_checkpoints: bool) -> None:
        self.places = places
        self._keep = keep_checkpoints
        self._workers: list[_Worker] = []
        self._ended: queue.Queue[tuple[_Worker, str]] = queue.Queue()

    def start(self, job: Job, path: Path) -> None:
        """Give a run to a process that is idle, or to a new one."""
        idle = [worker for worker in self._workers if worker.job is None]
        worker = idle[0] if idle else self._hired()
        worker.job = job
        order = {"tree": job.tree, "path": str(path), "keep_checkpoint": self._keep}
        worker.order(json.dumps(order, default=str))

    def wait(self) -> tuple[Job, Outcome]:
        """Wait for an answer, or for the end of a process."""
        while True:
            worker, line = self._ended.get()
            job, worker.job = worker.job, None
            if line:
                assert job is not None
                return job, Outcome(**json.loads(line))
            self._workers.remove(worker)
            code = worker.bury()
            if job is not None:
                return job, Outcome("failed", _death(code))

    def close(self) -> None:
        """Interrupt runs, wait until they have saved their states, and end all processes."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.send_signal(signal.SIGINT)
        for worker in self._workers:
            if worker.job is None:
                worker.dismiss()
        with contextlib.suppress(queue.Empty):
            while any(worker.job is not None for worker in self._workers):
                worker, _ = self._ended.get(timeout=PATIENCE)
                worker.job = None
                worker.dismiss()
        for worker in self._workers:
            worker.process.kill()
            worker.bury()
        self._workers = []

    def _hired(self) -> _Worker:
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
        worker = _Worker(process)
        worker.reader = threading.Thread(target=self._read, args=(worker,), daemon=True)
        worker.reader.start()
        self._workers.append(worker)
        return worker

    def _read(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            self._ended.put((worker, line))
        self._ended.put((worker, ""))


def _death(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory?" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code}"
