"""The user's configuration: default values of options, aliases of models, and `agentloop config`, which shows and changes them."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from attrs import field, frozen
from click.core import ParameterSource

from agentloop.errors import ConfigurationError, InvalidDescriptor, InvalidFile
from agentloop.errors.hints import suggest
from agentloop.models.config import find_preset
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, require_text
from agentloop.service.cli.folders import config_file
from agentloop.toolkits.source_files import LocatedValue, Mistake, SourceFile, find_toml_lines, read_source_file

# --- settings -------------------------------------------------------------------------------------------------------

MODEL_VARIABLE: Final = "AGENTLOOP_MODEL"
"""The environment variable with the default model; it precedes the file."""
DEMO_MODEL: Final = "demo"
"""The model that needs no API key and no network; it has no provider."""
_ALIASES = "aliases"
_APPROVALS = ("ask", "untrusted", "all", "none")


@frozen
class Setting:
    """A key of the configuration file.

    Attributes:
        kind: the type of its values.
        summary: what it is, for people.
        problem: returns what is wrong with a value of this type; empty when nothing is.
    """

    kind: type
    summary: str
    problem: Callable[[Any], str] = field(default=lambda _: "")

    def check(self, value: object) -> str:
        """Return what is wrong with a value; empty when nothing is."""
        is_number = self.kind is float and isinstance(value, int) and not isinstance(value, bool)
        if type(value) is not self.kind and not is_number:
            return f"it is {_KINDS[self.kind]}, not {value!r:.80}"
        return self.problem(value)

    def parse(self, text: str) -> object:
        """Return the value that a text of the command line stands for; the text itself when it stands for none."""
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        try:
            return self.kind(text)
        except ValueError:
            return text


_KINDS: Mapping[type, str] = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def _above_zero(value: float) -> str:
    return "" if 0 < value < inf else f"it is a number above 0, not {value:g}"


def _check_approval(value: str) -> str:
    return "" if value in _APPROVALS else f"it is one of {', '.join(_APPROVALS)}, not {value!r:.80}"


def _check_path(value: str) -> str:
    is_fixed = value.startswith("~/") or Path(value).is_absolute()
    return "" if is_fixed else f"write an absolute path, or one that begins with ~/, in place of {value!r:.80}"


def _check_model(value: str) -> str:
    """Check a model string or an alias; whether there is such an alias depends on the rest of the file."""
    provider, colon, model = value.partition(":")
    if not colon:
        return "" if value.strip() else "the name of the model is empty"
    try:
        find_preset(provider.strip().lower())
    except ConfigurationError as error:
        return str(error)
    return "" if model.strip() else f"{value!r:.80} names no model of {provider}"


SETTINGS: Mapping[str, Setting] = {
    "model": Setting(str, "the default model: provider:model, an alias, or demo", _check_model),
    "approve": Setting(
        str, "which calls need approval, and who gives it: untrusted, ask, all or none", _check_approval
    ),
    "max_steps": Setting(int, "the maximum number of steps", _above_zero),
    "timeout": Setting(float, "the maximum time, in seconds", _above_zero),
    "max_tokens": Setting(int, "the maximum number of tokens, input and output", _above_zero),
    "max_cost": Setting(float, "the maximum cost, in dollars", _above_zero),
    "ask_cost": Setting(bool, "whether `run` and `chat` ask for the maximum cost if none is set"),
    "stream": Setting(bool, "whether `run` shows the model's text while it is generated"),
    "journal": Setting(str, "the journal in which `run` and `chat` record what they do", _check_path),
    "history": Setting(bool, "whether the chat keeps the history of its input"),
}
"""The keys of the file, except the table `aliases`."""


@frozen
class Configuration:
    """The user's configuration.

    Attributes:
        values: the values by key, without aliases.
        aliases: model strings by alias.
    """

    values: Mapping[str, Any] = field(factory=dict)
    aliases: Mapping[str, str] = field(factory=dict)

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Read a configuration file; a missing file is an empty one.

        Raises:
            InvalidUsage: the file cannot be read, or has mistakes; names the line and the key of each.
        """
        try:
            if not path.exists():
                return cls()
            source = read_source_file(path)
        except InvalidFile as error:
            raise InvalidUsage(str(InvalidDescriptor([(str(path), "", error.line, str(error))]))) from error
        except (ConfigurationError, OSError) as error:
            raise InvalidUsage(f"the configuration file cannot be read: {error}") from error
        mistakes = list(_find_mistakes(source))
        if mistakes:
            raise InvalidUsage(str(InvalidDescriptor(mistakes)))
        values = {key: value for key, value in source.data.items() if key != _ALIASES}
        return cls(values, source.data.get(_ALIASES, {}))

    def resolve_model(self, name: str) -> str:
        """Return the model string that a name stands for: that of an alias, or the name itself.

        Raises:
            InvalidUsage: the name has no provider and is not an alias.
        """
        name = name.strip()
        if ":" in name or name == DEMO_MODEL:
            return name
        if name not in self.aliases:
            known = [DEMO_MODEL, *self.aliases]
            raise InvalidUsage(
                f"{name!r:.200} does not have the form provider:model, as in openai:gpt-5, and is not an alias"
                f"{suggest(name, known)}"
            )
        return self.aliases[name]

    def path(self, key: str) -> str | None:
        """Return the value of a key that is a path, with the home folder in place of `~`."""
        value = self.values.get(key)
        return None if value is None else str(Path(value).expanduser())


def _find_mistakes(source: SourceFile) -> Iterator[Mistake]:
    document = LocatedValue(source.data, source, ())
    for key, value in source.data.items():
        if key == _ALIASES:
            yield from _mistakes_of_aliases(document.at(_ALIASES))
        elif key not in SETTINGS:
            yield document.mistake(f"there is no such key{suggest(key, [*SETTINGS, _ALIASES])}", key)
        elif problem := SETTINGS[key].check(value) or _problem_of_default(key, value, source):
            yield document.mistake(problem, key)


def _problem_of_default(key: str, value: str, source: SourceFile) -> str:
    aliases = source.data.get(_ALIASES, {})
    if key != "model" or ":" in value or value == DEMO_MODEL or value in aliases:
        return ""
    return f"{value!r:.80} has no provider, as in openai:gpt-5, and is not an alias of this file"


def _mistakes_of_aliases(aliases: LocatedValue) -> Iterator[Mistake]:
    if not isinstance(aliases.value, dict):
        yield aliases.mistake('it is a table, as in fast = "openai:gpt-5-mini" below [aliases]')
        return
    for name, model in aliases.value.items():
        problem = check_alias(name, model)
        if problem:
            yield aliases.mistake(problem, name)


def check_alias(name: str, model: object) -> str:
    """Return what is wrong with an alias; empty when nothing is."""
    if not name.strip() or ":" in name or name == DEMO_MODEL or not name.isprintable():
        return f"an alias is a word without a colon other than demo, not {name!r:.80}"
    if not isinstance(model, str):
        return f"it is a text such as openai:gpt-5, not {model!r:.80}"
    return _check_model(model) if ":" in model else f"it is a model such as openai:gpt-5, not {model!r:.80}"


def load_configuration() -> Configuration:
    """Return the user's configuration.

    Raises:
        InvalidUsage: the file cannot be read, or has mistakes.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return Configuration.read(config_file())
    # One command reads several values; it sees one file.
    if _LOADED not in context.meta:
        context.meta[_LOADED] = Configuration.read(config_file())
    loaded: Configuration = context.meta[_LOADED]
    return loaded


_LOADED = "agentloop.configuration"


# --- options with a configured default ------------------------------------------------------------------------------


FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


class ConfiguredOption(click.Option):
    """An option whose default is in the configuration file.

    Its value then has the source `ParameterSource.DEFAULT_MAP`. The file is read when the option is omitted, and not before.
    """

    def __init__(self, *arguments: Any, setting: str = "", **options: Any) -> None:
        """Create the option.

        Args:
            *arguments: those of `click.Option`.
            setting: the key in the file; by default the name of the parameter.
            **options: those of `click.Option`.
        """
        super().__init__(*arguments, **options)
        self.setting: str = setting or str(self.name)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value, and where it is from."""
        value, source = super().consume_value(ctx, opts)
        # Completion must not fail because of a mistake in the file.
        if source is not ParameterSource.DEFAULT or ctx.resilient_parsing:
            return value, source
        configured = load_configuration().values.get(self.setting)
        return (value, source) if configured is None else (configured, ParameterSource.DEFAULT_MAP)


configured_option: Callable[..., Callable[[FC], FC]] = partial(click.option, cls=ConfiguredOption)
"""Like `click.option`, with a default in the configuration file."""


def is_given(context: click.Context, name: str) -> bool:
    """Return whether the command line itself has a parameter, rather than a variable, the configuration file or a default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


# --- changes --------------------------------------------------------------------------------------------------------

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TABLE = re.compile(r"[ \t]*\[")
_ALIASES_TABLE = re.compile(r"[ \t]*\[[ \t]*aliases[ \t]*\][ \t]*(#.*)?$")


def edit_toml(text: str, path: tuple[str, ...], value: object) -> str:
    """Return a TOML document with one value set or removed; comments and all other lines stay as they are.

    Args:
        text: the document.
        path: the key, or the table `aliases` and a key in it.
        value: the value; None to remove the key.

    Raises:
        ConfigurationError: the document cannot be changed line by line, as when the value is written over several lines.
    """
    expected = tomllib.loads(text)
    table = expected if len(path) == 1 else expected.setdefault(path[0], {})
    if value is None:
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value
    edited = _replace_line(text.splitlines(), path, value)
    try:
        actual = tomllib.loads(edited)
    except tomllib.TOMLDecodeError:
        actual = {}
    # An emptied table may stay.
    if {_ALIASES: {}, **actual} != {_ALIASES: {}, **expected}:
        raise ConfigurationError(f"{'.'.join(path)} cannot be changed by a command; change the file in an editor")
    return edited


def _replace_line(lines: list[str], path: tuple[str, ...], value: object) -> str:
    key = path[-1] if _BARE_KEY.fullmatch(path[-1]) else json.dumps(path[-1], ensure_ascii=False)
    new = [] if value is None else [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    present = find_toml_lines("\n".join(lines)).get(path, 0)
    if present:
        lines[present - 1 : present] = new
    elif len(path) == 1:
        at = _end_of_top_level(lines)
        is_before_blank = at == len(lines) or not lines[at].strip()
        lines[at:at] = new if is_before_blank else [*new, ""]
    else:
        header = next((number for number, line in enumerate(lines) if _ALIASES_TABLE.match(line)), None)
        at = len(lines) if header is None else header + 1
        lines[at:at] = new if header is not None else [*([""] if lines else []), f"[{path[0]}]", *new]
    return "".join(f"{line}\n" for line in lines)


def _replace_file(file: Path, text: str) -> None:
    """Write a file so that nobody reads half of it."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as written:
        try:
            written.write(text)
            written.close()
            Path(written.name).replace(file)
        except BaseException:
            Path(written.name).unlink(missing_ok=True)
            raise


def _end_of_top_level(lines: list[str]) -> int:
    """Return the index of the line before which a key belongs to no table."""
    # Below a header, it would be a key of that table; comments directly above a header belong to it.
    at = next((number for number, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    if at < len(lines):
        while at and lines[at - 1].lstrip().startswith("#"):
            at -= 1
    while at and not lines[at - 1].strip():
        at -= 1
    return at


def _change_file(path: tuple[str, ...], value: object) -> Path:
    """Set or remove a value in the configuration file, which is replaced as a whole.

    Raises:
        InvalidUsage: the file has mistakes, or cannot be changed or written.
    """
    file = config_file()
    Configuration.read(file)
    try:
        text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
        edited = edit_toml(text, path, value)
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace_file(file.resolve(), edited)  # dotfiles are often links to files elsewhere
    except ConfigurationError as error:
        raise InvalidUsage(f"{file}: {error}") from error
    except OSError as error:
        raise InvalidUsage(f"{file} cannot be written: {error.strerror or error}") from error
    return file


def save_setting(key: str, value: object) -> Path:
    """Set a key of the configuration file, also for the rest of this command; return the path of the file.

    Raises:
        InvalidUsage: the file has mistakes, or cannot be changed or written.
    """
    file = _change_file((key,), value)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta.pop(_LOADED, None)
    return file


# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = f"""\
\b
Keys:
{chr(10).join(f"  {key:11} {setting.summary}" for key, setting in SETTINGS.items())}
  aliases.X   another name X for a model, as in `-m X`

\b
Examples:
  agentloop config set model openai:gpt-5
  agentloop config set aliases.fast openai:gpt-5-mini
  agentloop run -m fast "What is 12 % of 7,430?"
"""


@click.group(epilog=_EPILOG)
def config() -> None:
    """Show and change the default model, the default options and the aliases of models.

    An option of the command line precedes the environment variable AGENTLOOP_MODEL, which precedes the configuration file. API
    keys are not in the file: they come from the variables of the providers (`agentloop models`).
    """


@config.command(name="path", short_help="Print the path of the configuration file.")
def print_path() -> None:
    """Print the path of the configuration file, as `agentloop config path` in `$EDITOR "$(agentloop config path)"`."""
    click.echo(str(config_file()))


@config.command(name="show", short_help="Print the configuration, and where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def show(*, as_json: bool) -> None:
    """Print each value and where it comes from, for example `agentloop config show --json`."""
    loaded, file = load_configuration(), str(config_file())
    entries = {key: (value, file) for key, value in loaded.values.items()}
    model = os.environ.get(MODEL_VARIABLE)
    if model:
        entries["model"] = (model, MODEL_VARIABLE)
    entries |= {f"{_ALIASES}.{name}": (model, file) for name, model in loaded.aliases.items()}
    if as_json:
        click.echo(
            json.dumps({key: {"value": value, "from": origin} for key, (value, origin) in entries.items()}, indent=2)
        )
        return
    for key, (value, origin) in entries.items():
        click.echo(as_one_line(f"{key} = {json.dumps(value, ensure_ascii=False)} ({origin})"))
    if not entries:
        click.echo(f"nothing is configured; {file} does not exist or is empty", err=True)


@config.command(name="set", short_help="Set a value.")
@click.argument("key")
@click.argument("value")
def set_value(*, key: str, value: str) -> None:
    """Set KEY of the configuration file to VALUE, for example `agentloop config set max_steps 20`."""
    path = _parse_key(require_text(key, "the key"))
    require_text(value, "the value")
    if path[0] == _ALIASES:
        parsed: object = value
        problem = check_alias(path[1], value)
    else:
        setting = SETTINGS[key]
        parsed = setting.parse(value)
        problem = setting.check(parsed)
        if key == "model" and not problem:
            load_configuration().resolve_model(value)
    if problem:
        raise InvalidUsage(f"{as_one_line(key)}: {problem}")
    click.echo(f"{as_one_line(key)} is set in {_change_file(path, parsed)}", err=True)


@config.command(name="unset", short_help="Remove a value.")
@click.argument("key")
def unset(*, key: str) -> None:
    """Remove KEY from the configuration file, for example `agentloop config unset aliases.fast`."""
    path, loaded = _parse_key(key), load_configuration()
    if path[-1] not in (loaded.values if len(path) == 1 else loaded.aliases):
        raise InvalidUsage(f"{as_one_line(key)} is not set in {config_file()}")
    click.echo(f"{as_one_line(key)} is removed from {_change_file(path, None)}", err=True)


def _parse_key(key: str) -> tuple[str, ...]:
    table, dot, name = key.partition(".")
    if table == _ALIASES and dot and name:
        return table, name
    if key not in SETTINGS:
        known = [*SETTINGS, f"{_ALIASES}.NAME"]
        raise InvalidUsage(f"there is no key {key!r:.80}{suggest(key, known)}; the keys are {', '.join(known)}")
    return (key,)
