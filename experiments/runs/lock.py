"""One process to a folder: a lock of the operating system, which ends with the process however that ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pyro_pfedbayes.errors import UserError

LOCK = ".lock"
"""Name of the file that is locked; it holds the process's number, and is gone when the lock is given back."""
_PAUSE = 0.1


class InUse(UserError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder for this process, by ``flock``, waiting up to ``wait`` seconds; Windows has none, and no lock."""
    path = folder / LOCK
    try:
        import fcntl
    except ImportError:
        yield
        return
    until = time.monotonic() + wait
    while (handle := _taken(path, fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
        if time.monotonic() >= until:
            raise InUse(
                f"{folder} is in use by another process{_holder(path)}; wait for it, or stop it"
            )
        time.sleep(_PAUSE)
    try:
        yield
    finally:
        # Removed while it is still locked: whoever waits for it sees that it is gone, and makes a new one.
        path.unlink(missing_ok=True)
        os.close(handle)


def _taken(path: Path, flock: object, how: int) -> int | None:
    """Open and lock a file; None if another process has it."""
    assert callable(flock)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    try:
        flock(handle, how)
        # It may have been removed between opening and locking.
        if os.stat(path).st_ino == os.fstat(handle).st_ino:
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as problem:
        os.close(handle)
        raise UserError(f"cannot lock {path}: {problem.strerror}") from problem
    os.close(handle)
    return None


def _holder(path: Path) -> str:
    """The number of the process that holds a lock, as it wrote it."""
    try:
        return f" (pid {int(path.read_text())})"
    except (OSError, ValueError):
        return ""
