"""The entry point and the group of commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from agentloop import __version__
from agentloop.service.cli.commands import ENTRIES, agentloop
from agentloop.service.cli.main import main
from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


def test_help_lists_every_command(command_line: CommandLine) -> None:
    """`--help` lists each command with its summary, and exits with 0."""
    result = command_line("--help")
    assert result.code == 0
    for name, entry in ENTRIES.items():
        assert name in result.out
        assert entry.summary in result.out


@pytest.mark.parametrize("name", ENTRIES)
def test_every_command_has_help(command_line: CommandLine, name: str) -> None:
    """`--help` works on each command and shows its usage."""
    result = command_line(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: agentloop {name} [OPTIONS]")


def test_listing_commands_loads_none_of_them() -> None:
    """`--help` imports neither the loop nor rich's console."""
    code = (
        "import sys; from click.testing import CliRunner; from agentloop.service.cli.commands import agentloop; "
        "assert CliRunner().invoke(agentloop, ['--help']).exit_code == 0; "
        "print([name for name in sys.modules if name in ('agentloop.loop', 'rich.console', 'httpx')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_leads_to_its_command(name: str) -> None:
    """The module of each entry has a command of its name."""
    command = agentloop.get_command(click.Context(agentloop), name)
    assert command is not None
    assert command.name == name


def test_version(command_line: CommandLine) -> None:
    """`--version` prints the version of the package."""
    result = command_line("--version")
    assert (result.code, result.out) == (0, f"agentloop {__version__}\n")


@pytest.mark.parametrize("module", ["click", "json", "tomllib"])
def test_the_package_is_a_command_that_no_file_of_the_folder_replaces(tmp_path: Path, module: str) -> None:
    """`python -m agentloop` runs the command with the modules that are installed, as the command itself does."""
    (tmp_path / f"{module}.py").write_text("raise SystemExit('this file is not a module of the package')")
    command = [sys.executable, "-m", "agentloop", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"agentloop {__version__}\n", "")


def test_a_folder_that_a_person_puts_on_the_path_stays_there(tmp_path: Path) -> None:
    """`python -m agentloop` removes the entry that `-m` adds, and leaves the one of PYTHONPATH, even if it is the same folder."""
    report = "import atexit, sys; atexit.register(lambda: print(sys.path.count({!r}), file=sys.stderr))"
    (tmp_path / "sitecustomize.py").write_text(report.format(str(tmp_path)))
    command = [sys.executable, "-m", "agentloop", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert (done.returncode, done.stderr) == (0, "1\n")


def test_an_unknown_command_is_a_usage_error(command_line: CommandLine) -> None:
    """An unknown command exits with 2 and a message that names it."""
    result = command_line("dance")
    assert result.code == 2
    assert "No such command 'dance'" in result.err


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_extra_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without click or rich, the command prints one line that says what to install, and exits with 2."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as exit_info:
        main(["demo"])
    assert exit_info.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "the command line needs the extra `cli`: pip install 'agentloop-kernel[cli]'\n"


def test_ctrl_c_outside_of_an_execution_ends_with_130(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a command loads its tools exits with 130 and without a traceback."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentloop.service.cli.agent_options.load_tools", interrupt)
    result = command_line("run", "hello", "--model", "ollama:m")
    assert (result.code, result.err) == (130, "Interrupted.\n")


def every_command(command: click.Command = agentloop, path: str = "agentloop") -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its path, groups before their commands."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, f"{path} {name}")


def test_every_help_says_what_a_command_is_for_and_shows_an_example() -> None:
    """Each opens with a sentence, and has a line that can be copied."""
    for path, command in every_command():
        text = command.help or ""
        assert text.partition("\n")[0].rstrip().endswith((".", ",", "`")), path
        lines = f"{text}\n{command.epilog or ''}"
        assert any(f"{mark}{path}" in lines for mark in ("`", "  ", "| ")), path


def test_an_unknown_command_is_suggested(command_line: CommandLine) -> None:
    """The closest name is in the message, for commands and for their commands."""
    assert "did you mean 'runs'?" in command_line("rums").err
    assert "Did you mean 'list'?" in command_line("runs", "lst").err
