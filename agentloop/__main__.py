"""`python -m agentloop` is the command `agentloop`."""

from __future__ import annotations

import os
import sys

# `python -m` searches the current folder first, where any file could take the place of a module that the command loads.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  # pathlib would be loaded from there
    del sys.path[0]

from agentloop.service.cli.main import main

if __name__ == "__main__":
    main()
