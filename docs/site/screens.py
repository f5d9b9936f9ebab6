"""Makes the pictures of terminals and of the viewer in `docs/pictures`, from commands that really run: `make pictures`."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.viewer.browser import Browser, browser_path  # noqa: E402  # found by the line above

PICTURES = ROOT / "docs" / "pictures"
COLUMNS, LINES = 104, 60
VIEW = (1240, 640)
SECONDS = 60.0
DESK = '''\
from agentloop import tool


@tool(effect="pure")
def find_order(number: int) -> dict[str, str]:
    """Find an order."""
    return {"item": "lamp", "sent": "Monday", "status": "lost by the carrier"}


@tool
def send_again(number: int) -> str:
    """Send an order once more."""
    return f"order {number} leaves tomorrow"
'''
"""The tools of the chat."""
ANSWERS: Sequence[str | tuple[str, Mapping[str, Any]]] = (
    ("find_order", {"number": 7}),
    "The carrier has lost order 7, a lamp. Shall I send it again?",
    ("send_again", {"number": 7}),
    "Done: another lamp leaves tomorrow.",
)
"""What the model of the chat answers: a text, or a call of a tool."""
_COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[=>]")
"""The commands to a terminal other than colors."""
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As rich writes it, without fonts that a browser would load."""


def run_in_terminal(arguments: Sequence[str], folder: Path, dialog: Sequence[tuple[str, str]] = ()) -> str:
    """Run a command in a terminal of its own, and return what it shows.

    Args:
        arguments: the arguments of the command `agentloop`.
        folder: the folder to run it in.
        dialog: texts to wait for, each with the line that a person types then.

    Raises:
        RuntimeError: the command does not show an awaited text, or fails.
    """
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "XDG_STATE_HOME": str(folder)}
    command = [str(Path(sys.executable).with_name("agentloop")), *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner)  # noqa: S603  # our own command
    os.close(inner)
    shown, until, waiting = b"", time.monotonic() + SECONDS, list(dialog)
    position = 0
    while time.monotonic() < until:
        if waiting and waiting[0][0].encode() in shown[position:]:
            position = len(shown)
            os.write(outer, f"{waiting.pop(0)[1]}\n".encode())
        if not select.select([outer], [], [], 0.1)[0]:
            continue
        try:
            shown += os.read(outer, 1 << 16)
        except OSError:  # the command has ended
            break
    os.close(outer)
    text = shown.decode()
    if process.wait(SECONDS) or waiting:
        raise RuntimeError(f"agentloop {' '.join(arguments)} shows\n{text}")
    return _COMMANDS.sub("", text.replace("\r\n", "\n")).replace("\r", "")


class _Model(BaseHTTPRequestHandler):
    """A model that follows `ANSWERS`, in the format of Chat Completions."""

    def do_POST(self) -> None:
        """Answer a request with a stream of events."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = sum(message["role"] == "assistant" for message in request["messages"])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in _deltas(ANSWERS[number], number):
            chunk = {
                "id": f"answer {number}",
                "model": "clerk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Write no log."""


def _deltas(answer: str | tuple[str, Mapping[str, Any]], number: int) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the pieces of an answer, each with the reason why it is the last."""
    if isinstance(answer, str):
        for word in answer.split(" "):
            yield {"content": f"{word} "}, None
        yield {}, "stop"
    else:
        function = {"name": answer[0], "arguments": json.dumps(answer[1])}
        yield {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]}, None
        yield {}, "tool_calls"


@contextmanager
def scripted_model() -> Iterator[str]:
    """Run the model of the chat; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def draw_terminal(text: str, title: str, path: Path) -> None:
    """Draw what a terminal has shown.

    Args:
        text: the text, with its colors.
        title: the title of the window.
        path: the file of the picture.
    """
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.strip("\n")))
    picture = console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=_SVG, unique_id=path.stem)
    path.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8")


def draw_viewer(page: Path, path: Path, theme: str = "light") -> None:
    """Draw a page of the trace viewer as a browser shows it.

    Args:
        page: the page.
        path: the file of the picture.
        theme: `light` or `dark`.

    Raises:
        RuntimeError: there is no browser here; `make viewer/.browser/chromium` unpacks one.
    """
    executable = browser_path()
    if executable is None:
        raise RuntimeError("there is no browser here: make viewer/.browser/chromium")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(executable, Path(profile))
        try:
            with browser.page(*VIEW) as shown:
                shown.use_theme(theme)
                shown.open(page.as_uri())
                shown.settle()
                answer = shown.send("Page.captureScreenshot", format="webp", quality=80)
                path.write_bytes(base64.b64decode(answer["data"]))
        finally:
            browser.close()


def main() -> None:
    """Run the demo, a chat and the viewer, and make their pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = run_in_terminal(["demo", "--yes", "--no-live", "--journal", "demo.db"], folder)
        found = re.search(r"\b(execution_[0-9a-f]+)", demo)
        if found is None:
            raise RuntimeError(f"the demo names no execution:\n{demo}")
        lines = demo.splitlines()
        first, last = (next(i for i, line in enumerate(lines) if title in line) for title in ("Question", "Account of"))
        draw_terminal("\n".join(lines[first:last]), "agentloop demo", PICTURES / "terminal.svg")

        (folder / "desk.py").write_text(DESK, encoding="utf-8")
        lines_typed = [("> ", "Where is order 7?"), ("> ", "Yes, please."), ("again: ", "y"), ("> ", "/quit")]
        with scripted_model() as address:
            chat = ["chat", "--model", "vllm:clerk", "--base-url", address, "--tools", "desk.py", "--no-live"]
            talk = run_in_terminal(chat, folder, lines_typed)
        draw_terminal(talk, "agentloop chat --tools desk.py", PICTURES / "chat.svg")

        view = ["trace", "view", found[1], "--journal", "demo.db", "-o", "trace.html", "--no-open"]
        run_in_terminal(view, folder)
        draw_viewer(folder / "trace.html", PICTURES / "viewer.webp")
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
