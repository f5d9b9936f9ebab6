"""What `agentloop run` asks: the argument, the text that is piped into it, and attached files."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"


@pytest.fixture
def base(server: ModelServer) -> list[str]:
    server.says("Fine.")
    return ["run", "-m", "ollama:m", "--base-url", server.base_url]


def asked(server: ModelServer) -> Any:
    """Return the content of the last message that the model was sent."""
    return server.requests[-1]["messages"][-1]["content"]


# --- stdin ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stdin", "question"),
    [
        ([], "What is 2+2?\n", "What is 2+2?\n"),
        (["What is wrong?"], "- a\n+ b\n", "- a\n+ b\n\nWhat is wrong?"),
        (["What is wrong?"], "", "What is wrong?"),
        (["What is wrong?"], " \n", "What is wrong?"),
        (["-"], "What is 2+2?", "What is 2+2?"),
    ],
)
def test_piped_text_is_the_question_or_precedes_it(  # noqa: PLR0917  # fixtures
    command_line: CommandLine, server: ModelServer, base: list[str], arguments: list[str], stdin: str, question: str
) -> None:
    """One message has both; white space alone is nothing."""
    assert command_line(*base, *arguments, stdin=stdin).code == 0
    assert asked(server) == question


@pytest.mark.parametrize(
    ("command", "question"),
    [
        pytest.param('echo "2+2?" | {run}', "2+2?\n", marks=pytest.mark.heavy),
        pytest.param('{run} "2+2?" < /dev/null', "2+2?", marks=pytest.mark.heavy),
        pytest.param('{run} "why?" < notes', "because\n\nwhy?", marks=pytest.mark.heavy),
        ('{run} "2+2?" <&-', "2+2?"),
        ('echo because | {run} "why?" | cat', "because\n\nwhy?"),
    ],
)
def test_a_shell_pipes_and_redirects(
    server: ModelServer, base: list[str], tmp_path: Path, command: str, question: str
) -> None:
    """In a real shell, pipes and files are read, devices and closed streams are not; a pipe gets the plain answer."""
    (tmp_path / "notes").write_text("because\n")
    run = f'"{sys.executable}" -m agentloop.service.cli.main {" ".join(base)} --quiet'
    done = subprocess.run(
        ["/bin/sh", "-c", command.format(run=run)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LONGEST,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Fine.\n", "")
    assert asked(server) == question


# --- attachments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["picture.png", "picture", "picture.txt"])
def test_an_image_is_told_by_its_bytes(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path, name: str
) -> None:
    """Whatever the name of the file, the model gets an image, and the question after it."""
    file = tmp_path / name
    file.write_bytes(PNG)
    assert command_line(*base, "-a", str(file), "What is it?").code == 0
    image, text = asked(server)
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert text == {"type": "text", "text": "What is it?"}


def test_documents_recordings_and_texts_are_attached_in_order(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """Each kind has the form that the provider takes; a text file is sent as text, with its name."""
    for name, data in {"a.pdf": PDF, "b.wav": WAV, "notes.py": "é = 1\n".encode("utf-8-sig")}.items():
        (tmp_path / name).write_bytes(data)
    files = [part for name in ("a.pdf", "b.wav", "notes.py") for part in ("-a", str(tmp_path / name))]
    result = command_line(*base, *files, "Compare.", stdin="piped")
    assert result.code == 0, result.err
    kinds = [part["type"] for part in asked(server)]
    assert kinds == ["file", "input_audio", "text", "text"]
    assert asked(server)[2]["text"] == "File 'notes.py':\n\né = 1\n\n"
    assert asked(server)[3]["text"] == "piped\n\nCompare."


def test_a_file_needs_no_question(
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path
) -> None:
    """An attachment alone is a message."""
    file = tmp_path / "picture.png"
    file.write_bytes(PNG)
    assert command_line(*base, "-a", str(file)).code == 0
    assert [part["type"] for part in asked(server)] == ["image_url"]


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "the file is empty"), (b"\x00\x01\x02", "no text and no image"), (b"caf\xe9", "no text and no image")],
)
def test_a_file_of_no_known_kind_is_refused(  # noqa: PLR0917  # fixtures
    command_line: CommandLine, server: ModelServer, base: list[str], tmp_path: Path, data: bytes, message: str
) -> None:
    """Nothing is sent, and the file is named."""
    file = tmp_path / "thing.bin"
    file.write_bytes(data)
    result = command_line(*base, "-a", str(file), "What is it?")
    assert (result.code, server.requests) == (2, [])
    assert f"--attach {file}: " in result.err
    assert message in result.err
