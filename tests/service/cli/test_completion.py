"""Completion in the shell: a real bash asks the command line what a word could become."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop.service.cli import completion
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="completion in bash needs bash")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the program `agentloop`, and with what `eval` takes from it."""
    folder = tmp_path_factory.mktemp("bin")
    path = folder / "agentloop"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(loaded_agentloop())} "$@"\n')
    path.chmod(0o755)
    environment = {**os.environ, "_AGENTLOOP_COMPLETE": "bash_source"}
    written = subprocess.run([path], env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    (folder / "completion.bash").write_text(written.stdout)
    return folder


def complete(program: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _agentloop_completion "$1"; printf "%s\\n" "${COMPREPLY[@]}"'
    command = [str(BASH), "--norc", "-c", script, str(program / "completion.bash"), "agentloop", *words]
    environment = {**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False, cwd=program
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ru"], {"run", "runs"}),
        pytest.param(["config", "s"], {"show", "set"}, marks=pytest.mark.heavy),
        pytest.param(["run", "--max-s"], {"--max-steps"}, marks=pytest.mark.heavy),
        pytest.param(["run", "--approve", ""], {"ask", "untrusted", "all", "none"}, marks=pytest.mark.heavy),
        (["run", "-m", "oll"], {"ollama:", "ollama-native:"}),
        pytest.param(["models", "anth"], {"anthropic:"}, marks=pytest.mark.heavy),
    ],
)
def test_commands_options_and_values_are_completed(program: Path, words: list[str], expected: set[str]) -> None:
    """bash offers exactly what begins like the word."""
    assert set(complete(program, *words)) == expected


def test_the_description_of_the_commands_is_up_to_date() -> None:
    """What completion reads says what the commands are; `python -m agentloop.service.cli.completion` writes it anew."""
    written = Path(completion.__file__).with_suffix(".json").read_text(encoding="utf-8")
    assert json.loads(written) == json.loads(json.dumps(completion.describe()))


LOADED = """
import os, sys
os.environ |= {"_AGENTLOOP_COMPLETE": "bash_complete", "COMP_WORDS": sys.argv[1], "COMP_CWORD": sys.argv[2]}
from agentloop.service.cli.main import main
try:
    main([])
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] in {"agentloop", "httpx", "rich"}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [("agentloop ru", "run runs"), ("agentloop run --max-s", "--max-steps"), ("agentloop chat -m oll", "ollama:")],
)
def test_a_word_is_completed_without_loading_the_library(words: str, offered: str) -> None:
    """Completing commands, options and models loads none of what runs them, which takes a second."""
    command = [sys.executable, "-c", LOADED, words, str(len(words.split()) - 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=True)
    assert set(offered.split()) <= set(done.stdout.replace("plain,", "").split())
    parts = {"main", "completion", "folders"}
    allowed = {
        "agentloop",
        "agentloop._lazy",
        "agentloop.errors",
        "agentloop.errors.hints",
        "agentloop.service",
        "agentloop.service.cli",
        *[f"agentloop.service.cli.{each}" for each in parts],
    }
    assert {name for name in done.stderr.split() if not name.startswith("rich")} <= allowed
    assert "rich.console" not in done.stderr.split()


def test_aliases_are_completed(program: Path, command_line: CommandLine) -> None:
    """Names of the configuration are offered; a mistake in the file offers the rest."""
    command_line("config", "set", "aliases.fast", "openai:gpt-5-mini")
    assert complete(program, "run", "-m", "fas") == ["fast"]
    (Path(os.environ["XDG_CONFIG_HOME"]) / "agentloop" / "config.toml").write_text("[")
    assert complete(program, "run", "-m", "open") == ["openai:", "openai-responses:", "openrouter:"]


def test_recorded_ids_are_completed(
    program: Path, command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """The ids of the journal that the command names are offered; without a journal there are none."""
    server.says("Hi.")
    journal = str(tmp_path / "runs.db")
    command_line("run", "hi", "-m", "ollama:m", "--base-url", server.base_url, "--journal", journal)
    (found,) = complete(program, "runs", "show", "--journal", journal, "exec")
    assert found in command_line("runs", "list", "--journal", journal, "--json").out
    assert complete(program, "runs", "show", "--journal", str(tmp_path / "absent.db"), "exec") == []
