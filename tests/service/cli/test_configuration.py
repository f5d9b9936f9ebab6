"""The configuration file: its place, its keys, its mistakes, and `agentloop config`."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop.errors import ConfigurationError
from agentloop.service.cli.configuration import SETTINGS, edit_toml
from agentloop.service.cli.folders import config_folder, state_folder

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer, TerminalCommandLine


@pytest.fixture
def file() -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "agentloop" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


# --- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "platform", "config", "state"),
    [
        ({"HOME": "/h"}, "linux", "/h/.config/agentloop", "/h/.local/state/agentloop"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}, "linux", "/c/agentloop", "/h/.local/state/agentloop"),
        (
            {"HOME": "/h", "XDG_STATE_HOME": "/s"},
            "darwin",
            _MAC := "/h/Library/Application Support/agentloop",
            "/s/agentloop",
        ),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}, "darwin", _MAC, _MAC),
        ({"HOME": "/h", "APPDATA": "/r", "LOCALAPPDATA": "/l"}, "win32", "/r/agentloop", "/l/agentloop"),
    ],
)
def test_folders_follow_the_platform(environment: dict[str, str], platform: str, config: str, state: str) -> None:
    """The variables of the XDG specification count everywhere, a relative path in them nowhere."""
    assert (config_folder(environment, platform), state_folder(environment, platform)) == (Path(config), Path(state))


# --- default values -------------------------------------------------------------------------------------------------


def test_the_option_precedes_the_variable_and_the_variable_the_file(
    command_line: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is that of --model, else of AGENTLOOP_MODEL, else of the file."""
    server.says("Hi.")
    run = ["run", "hi", "--base-url", server.base_url]
    command_line("config", "set", "model", "ollama:of-the-file")
    command_line(*run)
    monkeypatch.setenv("AGENTLOOP_MODEL", "ollama:of-the-variable")
    command_line(*run)
    command_line(*run, "-m", "ollama:of-the-option")
    monkeypatch.setenv("AGENTLOOP_MODEL", "")
    command_line(*run)
    names = [request["model"] for request in server.requests]
    assert names == ["of-the-file", "of-the-variable", "of-the-option", "of-the-file"]


def test_aliases_name_models_wherever_a_model_is_named(
    command_line: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alias works in the option, in the variable, and as the default model of the file."""
    server.says("Hi.")
    run = ["run", "hi", "--base-url", server.base_url]
    assert command_line("config", "set", "aliases.small", "ollama:tiny").code == 0
    assert command_line("config", "set", "model", "small").code == 0
    command_line(*run, "-m", "small")
    command_line(*run)
    monkeypatch.setenv("AGENTLOOP_MODEL", "small")
    command_line(*run)
    assert [request["model"] for request in server.requests] == ["tiny"] * 3


def test_default_options_apply_and_options_replace_them(
    command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """Steps, streaming and the journal of the file count, until the command line says otherwise."""
    server.says("Hi.")
    run = ["run", "hi", "-m", "ollama:m", "--base-url", server.base_url]
    journal = tmp_path / "runs.db"
    for key, value in {"stream": "true", "max_steps": "1", "journal": str(journal)}.items():
        assert command_line("config", "set", key, value).code == 0
    assert "recorded as" in command_line(*run).err
    assert journal.exists()
    assert "hi" in command_line("runs", "list").out
    command_line(*run, "--no-stream")
    command_line(*run, "--quiet")
    assert [request.get("stream", False) for request in server.requests] == [True, False, True]


def test_the_limit_of_the_file_counts(command_line: CommandLine, server: ModelServer, tmp_path: Path) -> None:
    """An execution stops after `max_steps`, and the file of an agent keeps its own number."""
    tools = tmp_path / "sums.py"
    tools.write_text(
        'from agentloop import tool\n\n@tool(effect="pure")\ndef one() -> int:\n    """One."""\n    return 1\n'
    )
    server.calls(("one", {}))
    command_line("config", "set", "max_steps", "2")
    base = ["-m", "ollama:m", "--base-url", server.base_url, "--tools", str(tools)]
    assert "Stopped after 2 steps" in command_line("run", "go", *base).err
    assert "Stopped after 3 steps" in command_line("run", "go", *base, "--max-steps", "3").err
    agent = tmp_path / "agent.toml"
    agent.write_text(f'model = "ollama:m"\nbase_url = "{server.base_url}"\nmax_steps = 4\n')
    of_agent = ["--agent", str(agent), "--allow-server", "*", "--tools", str(tools)]
    assert "Stopped after 4 steps" in command_line("run", "go", *of_agent).err


def test_the_file_of_an_agent_keeps_its_model(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default model never replaces the model of --agent."""
    server.says("Hi.")
    monkeypatch.setenv("AGENTLOOP_MODEL", "ollama:of-the-variable")
    agent = tmp_path / "agent.toml"
    agent.write_text(f'model = "ollama:of-the-agent"\nbase_url = "{server.base_url}"\n')
    command_line("run", "hi", "--agent", str(agent), "--allow-server", "*")
    assert [request["model"] for request in server.requests] == ["of-the-agent"]


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('# c\nmodle = "openai:x"\n', "line 2: modle: there is no such key, did you mean 'model'?"),
        ("model = 7\n", "line 1: model: it is a text, not 7"),
        ('model = ""\n', "line 1: model: the name of the model is empty"),
        ('model = "opnai:x"\n', "line 1: model: there is no provider 'opnai', did you mean 'openai'?"),
        ('model = "openai:"\n', "line 1: model: 'openai:' names no model of openai"),
        (
            'model = "fast"\n',
            "line 1: model: 'fast' has no provider, as in openai:gpt-5, and is not an alias of this file",
        ),
        ("max_steps = 0\n", "line 1: max_steps: it is a number above 0, not 0"),
        ("max_steps = 2.5\n", "line 1: max_steps: it is an integer, not 2.5"),
        ("max_steps = true\n", "line 1: max_steps: it is an integer, not True"),
        ("timeout = nan\n", "line 1: timeout: it is a number above 0, not nan"),
        ("timeout = inf\n", "line 1: timeout: it is a number above 0, not inf"),
        ("max_cost = -1\n", "line 1: max_cost: it is a number above 0, not -1"),
        ('stream = "yes"\n', "line 1: stream: it is true or false, not 'yes'"),
        ('approve = "some"\n', "line 1: approve: it is one of ask, untrusted, all, none, not 'some'"),
        ('journal = "runs.db"\n', "line 1: journal: write an absolute path, or one that begins with ~/"),
        ("aliases = 3\n", "line 1: aliases: it is a table"),
        ('[aliases]\nfast = "gpt"\n', "line 2: aliases.fast: it is a model such as openai:gpt-5, not 'gpt'"),
        ("[aliases]\nfast = 3\n", "line 2: aliases.fast: it is a text such as openai:gpt-5, not 3"),
        ('[aliases]\ndemo = "openai:x"\n', "line 2: aliases.demo: an alias is a word without a colon"),
        ('[aliases]\n"a:b" = "openai:x"\n', "line 2: aliases.a:b: an alias is a word without a colon"),
        ("model = \n", "line 1: this is not TOML"),
        ('model = "a"\nmodel = "b"\n', "this is not TOML"),
        ("\x00", "this is not TOML"),
    ],
)
def test_a_mistake_has_its_file_its_line_and_its_key(
    command_line: CommandLine, file: Path, text: str, message: str
) -> None:
    """A command that needs the file exits with 2 and names the place; one that does not need it still works."""
    file.write_text(text)
    result = command_line("run", "hi")
    assert (result.code, result.out) == (2, "")
    assert f"{file}" in result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert command_line("config", "path").out == f"{file}\n"
    assert command_line("--help").code == 0


def test_all_mistakes_are_reported_at_once(command_line: CommandLine, file: Path) -> None:
    """One line for each."""
    file.write_text('max_steps = 0\nstream = 1\n\n[aliases]\nx = "y"\n')
    assert len(command_line("config", "show").err.splitlines()) == 3


def test_a_file_that_is_not_text_or_not_a_file(command_line: CommandLine, file: Path) -> None:
    """Bytes that are not UTF-8 and a folder in its place are usage errors."""
    file.write_bytes(b'model = "\xff"\n')
    result = command_line("config", "show")
    assert (result.code, "line 1: the file is not UTF-8" in result.err) == (2, True)
    file.unlink()
    file.mkdir()
    result = command_line("config", "show")
    assert (result.code, "it is not a file" in result.err) == (2, True)


# --- the command ----------------------------------------------------------------------------------------------------


def test_values_are_set_shown_and_removed(
    command_line: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`set` and `unset` keep the comments and the other lines; `show` names where each value is from."""
    file.write_text("# mine\nmax_steps = 5  # few\n")
    assert command_line("config", "set", "aliases.gpt-4.1", "openai:gpt-4.1").code == 0
    assert command_line("config", "set", "model", "gpt-4.1").code == 0
    assert command_line("config", "set", "timeout", "2.5").code == 0
    assert file.read_text() == (
        '# mine\nmax_steps = 5  # few\nmodel = "gpt-4.1"\ntimeout = 2.5\n\n[aliases]\n"gpt-4.1" = "openai:gpt-4.1"\n'
    )
    assert f'model = "gpt-4.1" ({file})' in command_line("config", "show").out
    monkeypatch.setenv("AGENTLOOP_MODEL", "demo")
    shown = json.loads(command_line("config", "show", "--json").out)
    assert shown["model"] == {"value": "demo", "from": "AGENTLOOP_MODEL"}
    assert shown["aliases.gpt-4.1"]["value"] == "openai:gpt-4.1"
    for key in ("model", "timeout", "aliases.gpt-4.1"):
        assert command_line("config", "unset", key).code == 0
    assert file.read_text() == "# mine\nmax_steps = 5  # few\n\n[aliases]\n"


def test_the_file_is_created_with_the_first_value(command_line: CommandLine) -> None:
    """Without a file nothing is configured; `set` creates it with its folder."""
    assert "nothing is configured" in command_line("config", "show").err
    assert command_line("config", "set", "approve", "none").code == 0
    assert json.loads(command_line("config", "show", "--json").out)["approve"]["value"] == "none"


def test_a_link_to_the_file_stays_a_link(command_line: CommandLine, file: Path, tmp_path: Path) -> None:
    """A file that is kept elsewhere is changed there."""
    real = tmp_path / "dotfiles.toml"
    real.write_text("max_steps = 5\n")
    file.symlink_to(real)
    assert command_line("config", "set", "max_steps", "6").code == 0
    assert (file.is_symlink(), real.read_text()) == (True, "max_steps = 6\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "modle", "x"], "there is no key 'modle', did you mean 'model'?"),
        (["set", "aliases", "x"], "there is no key 'aliases', did you mean 'aliases.NAME'?"),
        (["set", "aliases.", "openai:x"], "there is no key 'aliases.'"),
        (["set", "aliases.x", "gpt-5"], "aliases.x: it is a model such as openai:gpt-5"),
        (["set", "aliases.demo", "openai:x"], "an alias is a word without a colon"),
        (["set", "model", "nope"], "is not an alias"),
        (["set", "model", "nope:x"], "there is no provider 'nope'"),
        (["set", "max_steps", "many"], "max_steps: it is an integer, not 'many'"),
        (["set", "max_steps", "-1"], "No such option"),
        (["set", "stream", "on"], "stream: it is true or false, not 'on'"),
        (["set", "timeout", "nan"], "timeout: it is a number above 0, not nan"),
        (["set", "model"], "Missing argument 'VALUE'"),
        (["unset", "model"], "model is not set in"),
        (["unset", "aliases.x"], "aliases.x is not set in"),
        (["unset", "nothing"], "there is no key 'nothing'"),
        (["sho"], "No such command 'sho'"),
    ],
)
def test_what_cannot_be_set_changes_nothing(command_line: CommandLine, arguments: list[str], message: str) -> None:
    """The exit code is 2, and no file is created."""
    result = command_line("config", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not Path(os.environ["XDG_CONFIG_HOME"]).exists()


def test_every_key_is_in_the_help(command_line: CommandLine) -> None:
    """`agentloop config --help` lists the keys of the file."""
    shown = command_line("config", "--help").out
    assert [key for key in SETTINGS if f"  {key} " not in shown] == []


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("", ("max_steps",), 3, "max_steps = 3\n"),
        ("# a\n[aliases]\n", ("stream",), True, "stream = true\n\n# a\n[aliases]\n"),
        ("[aliases]\n", ("model",), 'a"\\b', 'model = "a\\"\\\\b"\n\n[aliases]\n'),
        ("x = 1\n", ("aliases", "a b"), "é", 'x = 1\n\n[aliases]\n"a b" = "é"\n'),
        ("aliases.a = 'x'\n", ("aliases", "a"), "y", None),
        ("aliases = { a = 'x' }\n", ("aliases", "b"), "y", None),
        ("model = '''\na'''\n", ("model",), "b", None),
        ("[aliases] # mine\na = 'x'\n", ("aliases", "b"), "y", "[aliases] # mine\nb = \"y\"\na = 'x'\n"),
    ],
)
def test_a_document_is_changed_line_by_line_or_not_at_all(
    text: str, path: tuple[str, ...], value: object, expected: str | None
) -> None:
    """A change that would not be read back as it was meant is refused."""
    if expected is None:
        with pytest.raises(ConfigurationError, match="in an editor"):
            edit_toml(text, path, value)
    else:
        assert edit_toml(text, path, value) == expected


# --- the cost -------------------------------------------------------------------------------------------------------


@pytest.fixture
def paid_run(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run of a model that needs a key and has a published price."""
    server.says("Hi.")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")
    return ["run", "hi", "--base-url", server.base_url, "-m", "openai:gpt-5-mini"]


@pytest.mark.parametrize(
    ("typed", "stored"), [("much\n-1\n$0.5\n", {"max_cost": 0.5}), ("none\n", {"ask_cost": False})]
)
def test_a_person_is_asked_once_for_the_cost_of_runs(
    typed: str, stored: dict[str, object], at_terminal: TerminalCommandLine, paid_run: list[str], file: Path
) -> None:
    """Before the first request to a model with a price the person says a maximum or none, and is not asked again."""
    first = at_terminal(*paid_run, typed=typed)
    assert (first.code, first.out) == (0, "Hi.\n"), first.err
    assert first.err.count("How many dollars") == typed.count("\n")
    assert tomllib.loads(file.read_text()) == stored
    second = at_terminal(*paid_run, typed="")
    assert (second.code, "How many dollars" in second.err) == (0, False)


def test_a_free_model_and_a_given_cost_ask_for_nothing(
    at_terminal: TerminalCommandLine, paid_run: list[str], file: Path
) -> None:
    """A model that needs no key, and a run with --max-cost, ask for no maximum and change no file."""
    for command in ([*paid_run[:-1], "ollama:gpt-5-mini"], [*paid_run, "--max-cost", "2"]):
        result = at_terminal(*command, typed="")
        assert (result.code, "How many dollars" in result.err) == (0, False), result.err
    assert not file.exists()


def test_the_cost_that_was_said_limits_the_run(at_terminal: TerminalCommandLine, paid_run: list[str]) -> None:
    """The run of the question already has the maximum: a request that may cost more is not sent."""
    result = at_terminal(*paid_run, typed="0.0000001\n")
    assert result.code != 0
    assert result.out == ""
