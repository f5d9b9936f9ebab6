"""The entry point and the group of commands."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from agentloop import __version__
from agentloop.cli.commands import ENTRIES, agentloop
from agentloop.cli.main import main

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine


def test_help_lists_every_command(command_line: CommandLine) -> None:
    """`--help` names each command with its summary, and ends well."""
    ended = command_line("--help")
    assert ended.code == 0
    for name, entry in ENTRIES.items():
        assert name in ended.out
        assert entry.summary in ended.out


@pytest.mark.parametrize("name", ENTRIES)
def test_every_command_has_help(command_line: CommandLine, name: str) -> None:
    """`--help` works on each command and shows how it is called."""
    ended = command_line(name, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: agentloop {name} [OPTIONS]")


def test_a_command_is_loaded_when_it_is_used() -> None:
    """Listing the commands loads none of them: neither the loop nor rich's console."""
    code = (
        "import sys; from click.testing import CliRunner; from agentloop.cli.commands import agentloop; "
        "assert CliRunner().invoke(agentloop, ['--help']).exit_code == 0; "
        "print([name for name in sys.modules if name in ('agentloop.loop', 'rich.console', 'httpx')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ENTRIES)
def test_a_command_is_found_where_its_entry_says(name: str) -> None:
    """Every entry leads to a command of its name."""
    command = agentloop.get_command(click.Context(agentloop), name)
    assert command is not None
    assert command.name == name


def test_version(command_line: CommandLine) -> None:
    """`--version` tells the version of the package."""
    ended = command_line("--version")
    assert (ended.code, ended.out) == (0, f"agentloop {__version__}\n")


def test_an_unknown_command_is_bad_usage(command_line: CommandLine) -> None:
    """A command that does not exist ends with 2 and names it."""
    ended = command_line("dance")
    assert ended.code == 2
    assert "No such command 'dance'" in ended.err


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_extra_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without click or rich there is one line that says what to install, and exit code 2."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "the command line needs the extra `cli`: pip install 'agentloop[cli]'\n"


def test_ctrl_c_outside_of_an_execution_ends_with_130(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a command prepares itself ends quietly with 130."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentloop.cli.run.tools_from", interrupt)
    ended = command_line("run", "hello", "--model", "ollama:m")
    assert (ended.code, ended.err) == (130, "Interrupted.\n")
