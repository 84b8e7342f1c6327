"""Files that are replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Replace a file in one step, so that a reader never sees half of it; text becomes UTF-8.

    An OSError names ``path``, and leaves what was there. The temporary name is the process's own: two processes that
    write the same file do not meet in it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
    finally:
        temporary.unlink(missing_ok=True)
