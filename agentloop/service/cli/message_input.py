"""Messages that a person types or pastes: line editing, history, and messages of several lines."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from agentloop.service.cli.errors import InvalidUsage, require_text
from agentloop.values.secrets import open_private

QUOTES: Final = '"""'
"""What begins and ends a message of several lines."""
_PROMPT, _CONTINUED = "> ", "… "
_MAX_ENTRIES = 1_000
_MAX_ENTRY = 20_000  # characters; longer messages are pasted, and nobody looks for them in a history


class InputHistory:
    """The messages that were typed before, in a file of JSON strings that its owner alone can read.

    A file that cannot be read or written is a history that is forgotten at the end; it never disturbs a conversation.

    Args:
        file: the file; it is created with the first message.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[str]:
        """Return the last messages, the oldest first."""
        entries: list[str] = []
        with suppress(OSError):
            for line in self._file.read_text(encoding="utf-8", errors="replace").splitlines():
                # Two chats may write at once; a line that is damaged is left out.
                with suppress(ValueError):
                    entry = json.loads(line)
                    entries += [entry] if isinstance(entry, str) else []
        return entries[-_MAX_ENTRIES:]

    def add(self, text: str) -> None:
        """Append a message."""
        if len(text) > _MAX_ENTRY:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._file, "a", encoding="utf-8", opener=open_private) as file:  # Path.open has no opener
                file.write(f"{json.dumps(text)}\n")

    def shorten(self) -> None:
        """Drop all but the last messages, if there are many more."""
        with suppress(OSError):
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            if len(lines) > 2 * _MAX_ENTRIES:
                with open(self._file, "w", encoding="utf-8", opener=open_private) as file:
                    file.writelines(lines[-_MAX_ENTRIES:])


class MessageInput:
    r"""Reads messages from stdin, one per line.

    A message of several lines begins and ends with \"\"\". On a terminal with GNU readline, a pasted text is one message too.

    Args:
        console: where the prompt is printed, if there is no line editing.
        out: the stdout of the process, which line editing needs.
        history: the history; None for none.
        complete: returns what a line could become.
    """

    def __init__(
        self,
        console: Console,
        out: TextIO,
        history: InputHistory | None = None,
        complete: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._console = console
        self._out = out
        self._history = history
        self.is_terminal: bool = sys.stdin.isatty() and console.is_terminal
        self._readline = _load_readline(out) if self.is_terminal else None
        if self._readline is not None:
            self._set_up(self._readline, complete)

    def read(self) -> str | None:
        """Return the next message, without surrounding white space; None at the end of the input.

        On a terminal, what is not text is named, and the message is empty: a person can try again.

        Raises:
            InvalidUsage: the input cannot be read, or is not text.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        line = self._read_line(_PROMPT)
        if line is None:
            return None
        text = line.strip()
        if text.startswith(QUOTES):
            text = self._read_quoted(text.removeprefix(QUOTES))
        try:
            require_text(text, "the input")
        except InvalidUsage as error:
            if not self.is_terminal:
                raise
            self._console.print(Text(error.format_message(), "yellow"))
            return ""
        if text and self._readline is not None:
            _remember(self._readline, text)
            if self._history is not None:
                self._history.add(text)
        return text

    def _read_quoted(self, first: str) -> str:
        lines = [first]
        while not lines[-1].rstrip().endswith(QUOTES):
            line = self._read_line(_CONTINUED)
            if line is None:
                break
            lines.append(line.rstrip("\n"))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip()

    def _read_line(self, prompt: str) -> str | None:
        try:
            if self._readline is not None:
                # Line editing works on the stdout of the process only.
                with redirect_stdout(self._out):
                    return input(self._styled(prompt))
            if self.is_terminal:
                return self._console.input(Text(prompt, "bold cyan"))
            return sys.stdin.readline() or None
        except EOFError:
            self._console.print()
            return None
        except UnicodeDecodeError as error:
            if self.is_terminal:  # which is read line by line
                return error.object.decode(errors="surrogateescape")
            raise InvalidUsage(f"the input is not text: {error}") from error
        except OSError as error:
            raise InvalidUsage(f"the input cannot be read: {error.strerror or error}") from error

    def _styled(self, prompt: str) -> str:
        # readline counts the columns of the prompt, of which these characters mark what has none.
        return prompt if self._console.color_system is None else f"\1\x1b[1;36m\2{prompt}\1\x1b[0m\2"

    def _set_up(self, readline: ModuleType, complete: Callable[[str], Sequence[str]]) -> None:
        # Answers to questions about calls are read elsewhere, and are no messages.
        readline.set_auto_history(False)
        readline.clear_history()
        for entry in [] if self._history is None else self._history.read():
            _remember(readline, entry)
        if self._history is not None:
            self._history.shorten()

        def completion(line: str, number: int) -> str | None:
            matches = complete(line)
            return matches[number] if number < len(matches) else None

        # Lines are completed as a whole: models and files contain what readline takes for the end of a word.
        readline.set_completer_delims("")
        readline.set_completer(completion)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        if not is_libedit:
            # Python turns this off; without it, each line of a pasted text would be a message.
            readline.parse_and_bind("set enable-bracketed-paste on")


def _remember(readline: ModuleType, text: str) -> None:
    # A terminal whose encoding lacks a character of the text cannot show it again.
    with suppress(UnicodeEncodeError):
        readline.add_history(text)


def _load_readline(out: TextIO) -> ModuleType | None:
    """Return the module for line editing; None where the terminal is not that of the process, or has none."""
    try:
        is_own = os.path.sameopenfile(sys.stdin.fileno(), 0) and os.path.sameopenfile(out.fileno(), 1)
        return importlib.import_module("readline") if is_own and out.isatty() else None
    except (OSError, ImportError):  # a stream without a file descriptor; a platform without readline
        return None
