"""What we serve to clients: tools, resources and prompts."""

from __future__ import annotations

import inspect
import mimetypes
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote, unquote_to_bytes, urlsplit

from attrs import field, frozen

from agentloop._shielding import call_in_thread
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.mcp.session import ToolHandler
from agentloop.tools.decorator import tool
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.tool_calls import Effect
from agentloop.values.value import Value

_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")
_MAX_FILES = 1_000
_MAX_FILE_BYTES = 10 << 20


@frozen(eq=False, repr=False)
class ServedTool(Value):
    """A tool that we serve to clients.

    Attributes:
        name: its name.
        description: its description.
        parameters: the JSON Schema of its arguments.
        effect: the effect of a call.
        call: runs it.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect
    call: ToolHandler


@frozen(eq=False, repr=False)
class ServedArgument(Value):
    """A text that a prompt takes, or a variable of an address.

    Attributes:
        name: its name.
        description: its description.
        is_required: whether it has to be given.
        choices: the texts that it can be; empty when it can be any text.
    """

    name: str
    description: str = ""
    is_required: bool = True
    choices: tuple[str, ...] = ()


@frozen(eq=False)
class Resource:
    """Data that clients can read at an address; `@resource` makes it from a function.

    Attributes:
        uri: the address, or a template of addresses with variables: `notes://{name}` or, with slashes, `{+path}`.
        name: its name.
        description: its description.
        media_type: the type of the data; by default, that of the ending of the address, or of what the function returns.
        function: returns the data; takes the variables of the address.
        arguments: the variables.
    """

    uri: str
    name: str
    description: str
    media_type: str
    function: Callable[..., Any] = field(repr=False)
    arguments: tuple[ServedArgument, ...] = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def is_template(self) -> bool:
        """Whether the address has variables."""
        return bool(self.arguments)


@frozen(eq=False)
class Prompt:
    """Messages that people begin a conversation with; `@prompt` makes it from a function.

    Attributes:
        name: its name.
        description: its description.
        function: returns the messages; takes the arguments.
        arguments: the arguments.
    """

    name: str
    description: str
    function: Callable[..., Any] = field(repr=False)
    arguments: tuple[ServedArgument, ...] = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def resource(
    uri: str, *, name: str = "", description: str = "", media_type: str = ""
) -> Callable[[Callable[..., Any]], Resource]:
    """Make a function a resource, which `agentloop mcp serve` serves.

        @resource("notes://{name}", media_type="text/markdown")
        def note(name: str) -> str:
            '''A note by its name.'''
            return notes[name]

    The function returns text, bytes, JSON data, or an image, audio or a document; it may be asynchronous.

    Args:
        uri: the address, with the parameters of the function as its variables.
        name: its name; that of the function when left out.
        description: its description; that of the docstring when left out.
        media_type: the type of the data, such as `text/markdown`.

    Raises:
        ToolDefinitionError: when the address is none, or its variables are not the parameters of the function.
    """
    if not urlsplit(uri).scheme or "{" in _VARIABLE.sub("", uri):
        raise ToolDefinitionError(
            f"{uri!r} is not the address of a resource: write notes://{{name}} or notes://{{+path}}"
        )

    def make(function: Callable[..., Any]) -> Resource:
        text, arguments = _read_signature(function, description)
        variables, names = {match[2] for match in _VARIABLE.finditer(uri)}, {argument.name for argument in arguments}
        if variables != names:
            raise ToolDefinitionError(
                f"the resource {uri!r} has the variables {sorted(variables)}, and its function the parameters {sorted(names)}"
            )
        kind = media_type or mimetypes.guess_type(urlsplit(uri).path)[0] or ""
        return Resource(uri, name or function.__name__, text, kind, function, arguments)

    return make


@overload
def prompt(function: Callable[..., Any], /) -> Prompt: ...


@overload
def prompt(*, name: str = "", description: str = "") -> Callable[[Callable[..., Any]], Prompt]: ...


def prompt(
    function: Callable[..., Any] | None = None, /, *, name: str = "", description: str = ""
) -> Prompt | Callable[[Callable[..., Any]], Prompt]:
    """Make a function a prompt, which `agentloop mcp serve` serves.

        @prompt
        def review(code: str, language: Literal["Python", "Rust"] = "Python") -> str:
            '''Review code.'''
            return f"Review this {language} code: {code}"

    The function takes texts, and returns a text, a part such as an image, a `Message`, or a list of these; it may be
    asynchronous.

    Args:
        function: the function.
        name: its name; that of the function when left out.
        description: its description; that of the docstring when left out.

    Raises:
        ToolDefinitionError: when a parameter is not a text.
    """

    def make(function: Callable[..., Any]) -> Prompt:
        text, arguments = _read_signature(function, description)
        return Prompt(name or function.__name__, text, function, arguments)

    return make if function is None else make(function)


def _read_signature(function: Callable[..., Any], description: str) -> tuple[str, tuple[ServedArgument, ...]]:
    """Return the description of a function, of its docstring if none is given, and its arguments, which the protocol passes as texts."""
    made = tool(description=description or None)(function)
    required, arguments = made.parameters.get("required", ()), []
    for name, schema in made.parameters.get("properties", {}).items():
        choices = tuple(schema.get("enum", ()))
        if schema.get("type", "string" if choices else "") != "string" or not all(
            isinstance(item, str) for item in choices
        ):
            raise ToolDefinitionError(
                f"the parameter {name!r} of {function.__name__} has to be a str: clients pass texts"
            )
        arguments.append(ServedArgument(name, schema.get("description", ""), name in required, choices))
    return made.description, tuple(arguments)


async def run_served(served: Resource | Prompt, arguments: Mapping[str, str]) -> Any:
    """Call the function of a resource or a prompt; one that is not asynchronous is called in a thread."""
    if inspect.iscoroutinefunction(served.function):
        return await served.function(**arguments)
    return await call_in_thread(served.function, **arguments)


@frozen(eq=False)
class Offers:
    """Everything that a server of ours offers.

    Attributes:
        name: the name of the server.
        tools: its tools.
        resources: its resources.
        prompts: its prompts.
        folders: folders whose files are resources.
        tasks: the names of the tools whose calls become tasks for clients that know them; `*` matches any characters.
    """

    name: str
    tools: Sequence[ServedTool] = ()
    resources: Sequence[Resource] = ()
    prompts: Sequence[Prompt] = ()
    folders: Sequence[ServedFolder] = ()
    tasks: Sequence[str] = ()


# --- files ------------------------------------------------------------------------------------------------------------


def _resolved(path: str | os.PathLike[str]) -> Path:
    return Path(path).resolve()


@frozen(eq=False)
class ServedFolder:
    """The files of a folder as resources: `file:///NAME/…`, where NAME is that of the folder.

    Hidden files and folders are left out, as are links that lead out of the folder. At most 1,000 files are listed.

    Attributes:
        root: the folder.

    Raises:
        ConfigurationError: when there is no such folder.
    """

    root: Path = field(converter=_resolved)

    def __attrs_post_init__(self) -> None:
        if not self.root.is_dir():
            raise ConfigurationError(f"there is no folder {self.root} to serve")

    @property
    def _prefix(self) -> str:
        return f"file:///{quote(os.fsencode(self.root.name))}/"

    def list(self) -> list[tuple[str, Path]]:
        """Return the addresses and the paths of the files, by name; the first 1,000."""
        found: list[tuple[str, Path]] = []
        for path in self._walk():
            # The bytes of the name, which may be no UTF-8.
            found.append((self._prefix + quote(os.fsencode(path.relative_to(self.root).as_posix())), path))
            if len(found) >= _MAX_FILES:
                break
        return found

    def _walk(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(files) if self._is_served(Path(folder, name)))

    def _is_served(self, path: Path) -> bool:
        is_hidden = any(part.startswith(".") for part in path.relative_to(self.root).parts)
        try:
            return not is_hidden and path.is_file() and path.resolve().is_relative_to(self.root)
        except OSError:  # such as of a name that is too long
            return False

    def read(self, uri: str) -> bytes | None:
        """Return the content of a file; None when it is not served.

        Raises:
            ConfigurationError: when it is larger than 10 MiB.
        """
        if not uri.startswith(self._prefix):
            return None
        relative = os.fsdecode(unquote_to_bytes(uri.removeprefix(self._prefix)))
        path = self.root / relative
        is_inside = (
            relative and "\0" not in relative and ".." not in Path(relative).parts and not Path(relative).is_absolute()
        )
        if not is_inside or not self._is_served(path):
            return None
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigurationError(f"the file {uri} is larger than {_MAX_FILE_BYTES:,} bytes")
        return content
