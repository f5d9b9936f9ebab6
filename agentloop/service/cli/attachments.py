"""The message of a command line: a question, the text that is piped into it, and attached files."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from agentloop.errors import ConfigurationError
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, describe_file_error, require_text
from agentloop.service.cli.inventory import FC
from agentloop.values.messages import ATTACHED, Message
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.reprs import format_count
from agentloop.values.tool_calls import ContentPart

attachment_option: Callable[[FC], FC] = click.option(
    "--attach",
    "-a",
    "attachments",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="An image, a document or an audio recording for the model, or a text file, which is sent as text. May be repeated.",
)
"""The option `--attach`, whose values `read_attachments` takes."""


def compose_message(question: str, attachments: Iterable[ContentPart], *, quoted: int = 0) -> str | Message:
    """Return the input of an execution: the text alone, or a message of the attachments and the text.

    The message tells how much of its text is not the user's own words.

    Args:
        question: the text.
        attachments: the parts before it.
        quoted: the number of characters at its beginning that were piped into the command.
    """
    parts = list(attachments)
    if not parts and not quoted:
        return question
    attached = sum(len(part.text) for part in parts if isinstance(part, Text)) + quoted
    return Message.user(*parts, *([question] if question.strip() else []), metadata={ATTACHED: attached})


# --- stdin ----------------------------------------------------------------------------------------------------------


def read_piped_text() -> str:
    """Return the text that a pipe or a redirected file has on stdin; empty when stdin is anything else.

    Raises:
        InvalidUsage: it is not text.
    """
    return read_stdin() if _is_piped() else ""


def read_stdin(*, takes_files: bool = True) -> str:
    """Return all text on stdin.

    Args:
        takes_files: whether the command has the option `--attach`.

    Raises:
        InvalidUsage: it is not text.
    """
    try:
        return require_text(sys.stdin.read(), "what is on stdin")
    except UnicodeDecodeError as error:
        advice = "; attach a file with --attach FILE" if takes_files else ""
        raise InvalidUsage(f"what is on stdin is not text: {error}{advice}") from error
    except OSError as error:
        raise InvalidUsage(f"stdin cannot be read: {describe_file_error(error)}") from error


def _is_piped() -> bool:
    if sys.stdin.isatty():
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except io.UnsupportedOperation:  # a stream of the program around, without a file descriptor
        return True
    # A socket or a device may never end, and belongs to whatever has started the command.
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


# --- files ----------------------------------------------------------------------------------------------------------


_MAX_BYTES = 100_000_000  # more than any provider takes


def read_attachments(paths: Iterable[str]) -> list[ContentPart]:
    """Read attached files; what a file is shows in its bytes, not in its name.

    Raises:
        InvalidUsage: a file cannot be read, is empty or too large, or is of no known kind.
    """
    return [_read_attachment(Path(path)) for path in paths]


def _read_attachment(path: Path) -> ContentPart:
    data, name = _read_bytes(path), path.name
    if not data:
        raise InvalidUsage(f"--attach {_shown(path)}: the file is empty")
    for kind in (Image, Audio, Document):
        try:
            return kind(data=data, name=name)
        except ConfigurationError:  # of another kind
            continue
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidUsage(
            f"--attach {_shown(path)}: this is no text and no image, document or recording of a known kind"
        )
    # A name cannot end the line that introduces the text.
    return Text(f"File {as_one_line(name)!r}:\n\n{text.rstrip()}\n\n")


def _read_bytes(path: Path) -> bytes:
    limit = _MAX_BYTES
    try:
        if not path.exists():
            raise InvalidUsage(f"--attach {_shown(path)}: there is no such file")
        # A device or a pipe could be endless.
        if not path.is_file():
            raise InvalidUsage(f"--attach {_shown(path)}: this is not a file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise InvalidUsage(f"--attach {_shown(path)} cannot be read: {describe_file_error(error)}") from error
    if len(data) > limit:
        raise InvalidUsage(f"--attach {_shown(path)}: the file has more than {format_count(limit, 'byte')}")
    return data


def _shown(path: Path) -> str:
    return as_one_line(str(path))
