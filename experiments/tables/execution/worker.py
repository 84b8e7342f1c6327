"""A process that makes runs: a line of JSON in for each, a line of JSON out.

It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import sys
import threading
import warnings
from pathlib import Path
from typing import TextIO


def main() -> None:
    """Work until standard input ends."""
    # Answers go through a descriptor of their own, so that nothing else gets between them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    # Between two runs there is nothing to save.
    with contextlib.suppress(KeyboardInterrupt):
        import torch

        from pyro_pfedbayes.experiments.tables.execution.single_run import outcome_of

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        while True:
            order = json.loads(orders.get())
            found = outcome_of(order["tree"], Path(order["path"]), order["keep_checkpoint"])
            answers.write(json.dumps(dataclasses.asdict(found)) + "\n")
            answers.flush()


def _listen(source: TextIO, orders: queue.Queue[str]) -> None:
    for line in source:
        orders.put(line)
    # Nobody waits for an answer any more; the run's last checkpoint stays.
    os._exit(0)


if __name__ == "__main__":
    main()
