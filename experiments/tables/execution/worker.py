"""A process that makes one run, given as JSON, and writes its outcome as a line of JSON.

It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import warnings
from pathlib import Path


def main() -> None:
    """Make the run that the command line holds."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The outcome goes through a descriptor of its own, so that nothing else gets between.
    outcome = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    # An interrupt before the run has begun: there is nothing to save.
    with contextlib.suppress(KeyboardInterrupt):
        from pyro_pfedbayes.experiments.tables.execution.single_run import outcome_of

        order = json.loads(sys.argv[1])
        found = outcome_of(order["tree"], Path(order["path"]), order["keep_checkpoint"])
        print(json.dumps(vars(found)), file=outcome, flush=True)


def _end_with_parent() -> None:
    """The parent writes nothing: the pipe ends when it does. The run's last checkpoint stays."""
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
