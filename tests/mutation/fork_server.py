"""Runs pytest again and again without loading what does not change: each run is a fork of a process that has it loaded.

Reads lines of JSON from its input, `{"tests": […], "seconds": …}`, and answers each with `{"result": "killed"}`, `"survived"` or
`"timeout"`. It imports neither the package nor its tests itself, so each fork sees them as they are then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

PRELOADED = (
    "pytest",
    "hypothesis",
    "attrs",
    "cattrs",
    "httpx",
    "jsonschema",
    "orjson",
    "pytest_asyncio",
    "xdist",
    "pydantic",
    "docstring_parser",
)
_IGNORED = "ignore::pytest.PytestAssertRewriteWarning"
_POLL_SECONDS = 0.02
_OUTCOMES = {0: "survived", 5: "survived"}  # 5: no test was collected


def run(tests: list[str], seconds: float) -> str:
    """Run tests in a fork until one fails, and say what came of them."""
    child = os.fork()
    if child == 0:
        _run_tests(tests)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _OUTCOMES.get(os.waitstatus_to_exitcode(status), "killed")
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with everything that the tests have started
    os.waitpid(child, 0)
    return "timeout"


def _run_tests(tests: list[str]) -> None:
    os.setsid()
    sys.dont_write_bytecode = False  # what is compiled once is compiled for all forks
    sys.path.insert(0, str(Path.cwd()))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    code = 1
    try:
        import pytest  # noqa: PLC0415  # loaded before the fork

        # What is loaded before the fork cannot be rewritten for its assertions any more, and does not have to be.
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-W", _IGNORED]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def main() -> None:
    """Serve requests until the input ends."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"result": run(request["tests"], request["seconds"])}), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
