"""A process that makes one run after the other: a line of JSON in for each, and one with its outcome out.

It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import warnings
from pathlib import Path
from queue import SimpleQueue


def main() -> None:
    """Make the runs that arrive on standard input."""
    # Outcomes go through a descriptor of their own, so that nothing else gets between.
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    # An interrupt between runs: there is nothing to save.
    with contextlib.suppress(KeyboardInterrupt):
        from pyro_pfedbayes.experiments.tables.execution.single_run import outcome_of

        while True:
            order = json.loads(orders.get())
            found = outcome_of(order["tree"], Path(order["path"]), order["keep_checkpoint"])
            print(json.dumps(dataclasses.asdict(found)), file=outcomes, flush=True)


def _read(orders: SimpleQueue[str]) -> None:
    """Pass orders on until the parent ends, and end then; the last checkpoint of a run stays."""
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
