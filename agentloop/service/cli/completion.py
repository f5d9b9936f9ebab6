"""Completion in the shell, from a description of all commands that loads in no time: `completion.json`, beside this module.

A shell waits for the program at each press of a key, and the commands themselves take a second to load.
`python -m agentloop.service.cli.completion` writes the description anew.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import click
from click.shell_completion import CompletionItem, shell_complete

from agentloop.service.cli.folders import config_file
from agentloop.service.cli.main import COMPLETION

_FILE = Path(__file__).with_suffix(".json")
_MODEL = "model"
_EXECUTION = "execution"

Description: TypeAlias = dict[str, Any]
"""A command or a parameter, as JSON; a value that is not given is that of most."""


def complete() -> NoReturn:
    """Print what the word at the cursor could become, or the script for the shell, and end the process.

    Raises:
        SystemExit: always.
    """
    description = json.loads(_FILE.read_text(encoding="utf-8"))
    raise SystemExit(shell_complete(_Known(description), {}, "agentloop", COMPLETION, os.environ[COMPLETION]))


# --- reading --------------------------------------------------------------------------------------------------------


class _Known(click.Group):
    """A group whose commands are built from their descriptions when they are asked for."""

    def __init__(self, description: Description) -> None:
        super().__init__("agentloop", params=list(map(_parameter, description["parameters"])))
        self._described: Mapping[str, Description] = description["commands"]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(self._described)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        described = self._described.get(cmd_name)
        if described is None:
            return None
        if "commands" in described:
            command: click.Command = _Known(described)
        else:
            parameters = list(map(_parameter, described["parameters"]))
            command = click.Command(cmd_name, params=parameters)
        command.short_help = described.get("help")
        return command


def _parameter(described: Description) -> click.Parameter:
    values = described.get("values")
    shared: dict[str, Any] = {
        "type": click.Choice(values) if isinstance(values, list) else _TYPES.get(values),
        "shell_complete": _COMPLETERS.get(values) if isinstance(values, str) else None,
        "nargs": described.get("nargs"),
        "required": False,
    }
    if "options" not in described:
        return click.Argument([described["name"]], **shared)
    if described.get("is_flag"):
        shared = {"is_flag": True}
    multiple = described.get("multiple", False)
    help_text = described.get("help")
    return click.Option([*described["options"], described["name"]], **shared, multiple=multiple, help=help_text)


_TYPES: Mapping[object, click.Path] = {"file": click.Path(), "dir": click.Path(file_okay=False)}


def _complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    providers: Sequence[str] = json.loads(_FILE.read_text(encoding="utf-8"))["providers"]
    try:
        aliases = tomllib.loads(config_file().read_text(encoding="utf-8")).get("aliases")
    except (OSError, ValueError):  # shown when the command runs
        aliases = None
    names = ["demo", *(aliases if isinstance(aliases, dict) else ()), *[f"{provider}:" for provider in providers]]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _complete_execution(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    # Only this word needs the journal, which is most of the library.
    found: list[str] = import_module("agentloop.service.cli.journals").complete_execution(
        context, parameter, incomplete
    )
    return found


_COMPLETERS: Mapping[str, Callable[..., Any]] = {_MODEL: _complete_model, _EXECUTION: _complete_execution}
_COMPLETER_NAMES: Mapping[str, str] = {"complete_model": _MODEL, "complete_execution": _EXECUTION}


# --- writing --------------------------------------------------------------------------------------------------------


def describe() -> Description:
    """Return the description of all commands, which loads them."""
    commands: click.Group = import_module("agentloop.service.cli.commands").agentloop
    presets: Mapping[str, object] = import_module("agentloop.models.presets").PRESETS
    return {"providers": [*presets], **_describe_command(commands, click.Context(commands))}


def _describe_command(command: click.Command, context: click.Context) -> Description:
    described: Description = {
        "help": command.get_short_help_str(limit=100),
        "parameters": [_describe_parameter(parameter) for parameter in command.params],
    }
    if isinstance(command, click.Group):
        inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        described["commands"] = {
            name: _describe_command(each, click.Context(each)) for name, each in inner.items() if each is not None
        }
    return described


def _describe_parameter(parameter: click.Parameter) -> Description:
    described: Description = {"name": parameter.name}
    if isinstance(parameter, click.Option):
        slashed = "/".join([parameter.opts[0], *parameter.secondary_opts])
        described["options"] = [slashed, *parameter.opts[1:]]
        described |= {"is_flag": True} if parameter.is_flag else {}
        described |= {"multiple": True} if parameter.multiple else {}
        described |= {"help": parameter.help} if parameter.help else {}
    if parameter.nargs != 1:
        described["nargs"] = parameter.nargs
    values = _describe_values(parameter)
    return described | ({"values": values} if values else {})


def _describe_values(parameter: click.Parameter) -> object:
    completer: object = getattr(parameter, "_custom_shell_complete", None)
    if completer is not None:
        return _COMPLETER_NAMES[getattr(completer, "__name__", "")]
    if isinstance(parameter.type, click.Choice):
        return [*parameter.type.choices]
    if isinstance(parameter.type, click.Path):
        return "file" if parameter.type.file_okay else "dir"
    return "file" if isinstance(parameter.type, click.File) else None


def main() -> None:
    """Write the description anew."""
    _FILE.write_text(json.dumps(describe(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
