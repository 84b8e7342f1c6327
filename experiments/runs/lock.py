"""One process to a folder: a lock of the operating system, which ends with the process however that ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pyro_pfedbayes.errors import UserError

LOCK = ".lock"
"""Name of the file that is locked; it holds the process's number, and is gone when the lock is given back."""


class InUse(UserError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder for this process, waiting up to ``wait`` seconds for another one to give it back."""
    path = folder / LOCK
    lock = FileLock(path, timeout=wait, poll_interval=0.1, fallback_to_soft=False)
    try:
        folder.stat()  # filelock would make it
        lock.acquire()
    except Timeout:
        raise InUse(
            f"{folder} is in use by another process{_owner(path)}; wait for it, or stop it"
        ) from None
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        # Removed while it is still locked: whoever waits for it sees that it is gone, and makes a new one.
        path.unlink(missing_ok=True)
        lock.release()


def _owner(path: Path) -> str:
    """The number of the process that has a lock, as it wrote it."""
    try:
        return f" (pid {int(path.read_text())})"
    except (OSError, ValueError):
        return ""
