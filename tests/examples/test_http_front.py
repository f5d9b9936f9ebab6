"""The example of the HTTP front runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_front.py"


def test_the_client_follows_approves_and_is_refused_what_it_may_not() -> None:
    """The example prints the events of the execution, its answer, and why the auditor may not stop it."""
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    names = [line.partition(" ")[2] for line in lines]
    for name in ("execution_started", "execution_suspended", "decision_used", "execution_ended"):
        assert name in names
    assert lines[-2:] == ["Ada is paid.", "this needs the scope 'stop', which the token lacks"]
