"""Does the tutorial as a reader would: writes its files, runs them and its commands, compares what they print, and takes the times.

`make tutorial` runs it from a clean clone, installation included.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@frozen
class Action:
    """One block of the tutorial that a reader runs.

    Attributes:
        section: the heading above it.
        name: the name of the file, or the first words of the commands.
        language: `python` or `sh`.
        text: the block.
        printed: the lines that stand below the block; `…` in them stands for anything.
    """

    section: str
    name: str
    language: str
    text: str
    printed: tuple[str, ...]

    def missing(self, output: str) -> list[str]:
        """Return the promised lines that are not in the output, in their order."""
        lines = iter(output.splitlines())
        patterns = [line.replace("[", "[[]").replace("…", "*") for line in self.printed]
        return [pattern for pattern in patterns if not any(fnmatchcase(line, pattern) for line in lines)]


def read_actions() -> Iterator[Action]:
    """Yield the blocks of the tutorial that a reader runs, in their order."""
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        blocks: list[tuple[str, str]] = BLOCK.findall(part)
        for index, (language, text) in enumerate(blocks):
            if language == "text":
                continue
            after = blocks[index + 1] if index + 1 < len(blocks) else ("", "")
            printed = tuple(after[1].splitlines()) if after[0] == "text" else ()
            first = text.splitlines()[0]
            name = first.removeprefix("# ") if language == "python" else first
            yield Action(part.splitlines()[0], name, language, text, printed)


def run(action: Action, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a block in a folder and return what it prints, with the word that a shell adds when a process was killed.

    Raises:
        RuntimeError: it failed, or does not print what the page says.
    """
    command = ["sh", "-e", "-c", action.text]
    if action.language == "python":
        (folder / action.name).write_text(action.text, encoding="utf-8")
        command = [sys.executable if "VIRTUAL_ENV" not in environment else "python", action.name]
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)  # noqa: S603  # the page is part of the project
    output = done.stdout + ("Killed\n" if done.returncode == -signal.SIGKILL else "")
    is_expected = done.returncode == 0 or (done.returncode == -signal.SIGKILL and "Killed" in action.printed)
    if not is_expected or action.missing(output):
        raise RuntimeError(f"{action.name} prints\n{output}\n{done.stderr}\nwithout {action.missing(output)}")
    return output


def main() -> None:
    """Install the clone into a new environment, do the tutorial there, and print the time of each step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = dict(os.environ, VIRTUAL_ENV=str(folder / ".venv"))
        environment["PATH"] = f"{folder / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
        environment.pop("PYTHONPATH", None)
        total = 0.0
        for action in read_actions():
            text = action.text.replace("/path/to/your/clone", str(ROOT))
            started = time.perf_counter()
            run(Action(action.section, action.name, action.language, text, action.printed), folder, environment)
            seconds = time.perf_counter() - started
            total += seconds
            print(f"{seconds:6.1f} s  {action.section}: {action.name}")
        print(f"{total:6.1f} s  for the machine; the rest of the half hour is for reading")


if __name__ == "__main__":
    main()
