"""Counts the instructions that the processor runs for a turn, a chunk and a new process: calm on a busy machine, where times are not.

    python benchmarks/instructions.py [--only ROW …] [--compare TREE_OR_FILE] [--save FILE]

Each subject of `subject.py` runs under callgrind (https://valgrind.org). A case runs once before it is counted, so that what is made once
is not in it, and the collection of garbage that comes before each case is subtracted. Counts repeat to about 0.3%, and to 1% where threads
take turns. What the kernel does, such as writes to the disk, is not counted. Only the counts of one machine and one Python compare.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from attrs import frozen
from measuring import loopback
from table import DEFINITION, print_line, with_url

TREE = Path(__file__).parent.parent
ALLOWED = 1.05
"""From this ratio to the other tree on, a row is marked."""


@frozen
class Row:
    """One line of the table.

    Attributes:
        name: what is counted.
        case: what the subject is told, as in `subject.py`; `{url}` in its values stands for the server.
        units: by what the count is divided.
        warm: the case that runs before; None if the process must be a new one.
    """

    name: str
    case: Mapping[str, Any]
    units: int
    warm: Mapping[str, Any] | None


def _turns(name: str, path: str, units: int, tool: str = "async", **options: Any) -> Row:
    case = {"case": "turns", "url": f"{{url}}/{path}/v1", "tool": tool, **options}
    return Row(name, case, units, {**case, "repeat": 1})


def _stream(name: str, path: str, chunks: int, repeat: int) -> Row:
    case = {"case": "stream", "url": f"{{url}}/{path}-{chunks}/v1", "chunks": chunks, "repeat": repeat}
    return Row(name, case, chunks * repeat, {**case, "repeat": 1})


ROWS = [
    _turns("a turn of 10, plain tool", "10x1", 50, "plain", repeat=5),
    _turns("a turn of 10, async tool", "10x1", 50, repeat=5),
    _stream("a chunk, burst", "burst", 500, 2),
    _turns("50 async tools", "2x50", 50, "wait async"),
    _turns("50 plain tools", "2x50", 50, "wait plain"),
    _turns("a turn with labels", "10x1", 50, "async labels", repeat=5),
    _turns("a turn with SQLite, normal", "10x1", 50, "async normal", repeat=5),
    _turns("a turn with SQLite, full", "10x1", 50, "async full", repeat=5),
    _turns("20 executions at once", "5x1", 100, at_once=20),  # of 200, connections time out under valgrind
    _turns("a turn at 200 turns", "200x1", 200),
    _turns("a turn at 400 turns", "400x1", 400),
    Row("creation and the first call", {"case": "first", "url": "{url}/1x1/v1"}, 1, None),
]
PROGRAMS = {"import agentloop": "import agentloop", "defining an agent": DEFINITION}
"""What is counted as a whole process, less one that does nothing."""
NOTHING = {"case": "turns", "url": "{url}/1x1/v1", "repeat": 0}


class Counted:
    """Something that runs under callgrind, with the package of a tree.

    Args:
        tree: the folder of the package and its benchmarks.
        folder: where it can write.
        arguments: those of Python.
        at_start: whether counting begins with the process.
    """

    def __init__(self, tree: Path, folder: Path, arguments: Sequence[str], *, at_start: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out = folder / "counts"
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "BENCHMARK_FOLDER": str(folder)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(
            [
                "valgrind",
                "--quiet",
                "--tool=callgrind",
                f"--instr-atstart={'yes' if at_start else 'no'}",
                f"--callgrind-out-file={self._out}",
                sys.executable,
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def read(self) -> str:
        """Return a line that the process writes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"a subject has ended with code {self.process.wait()}")
        return line

    def tell(self, case: Mapping[str, Any]) -> None:
        """Run a case."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(case)}\n")
        self.process.stdin.flush()
        self.read()

    def control(self, option: str) -> None:
        """Start counting, begin at zero, or write the count."""
        subprocess.run(["callgrind_control", option, str(self.process.pid)], check=True, capture_output=True)

    def count(self) -> int:
        """Return what was counted since zero, and remove its files."""
        files = list(self._out.parent.glob(f"{self._out.name}*"))
        totals = [line for file in files for line in file.read_text().splitlines() if line.startswith("totals:")]
        for file in files:
            file.unlink()
        return sum(int(line.split()[1]) for line in totals)

    def count_case(self, case: Mapping[str, Any]) -> int:
        """Run a case, and return its instructions."""
        self.control("--zero")
        self.tell(case)
        self.control("--dump")
        return self.count()


class Subject:
    """agentloop as it is in a tree.

    Args:
        tree: the folder of the package and its benchmarks.
        url: the server.
        folder: where it can write.
    """

    def __init__(self, tree: Path, url: str, folder: Path) -> None:
        self._tree, self._url = tree, url
        self._folders = (folder / str(number) for number in count())
        self._nothing: int | None = None

    @contextmanager
    def _process(self, rows: Sequence[Row]) -> Iterator[Counted]:
        """Start a process that is warm for rows, and counts."""
        script = str(self._tree / "benchmarks" / "subject.py")
        counted = Counted(self._tree, next(self._folders), [script, "agentloop"], at_start=False)
        with ExitStack() as stack:
            stack.callback(counted.process.communicate)
            stack.callback(counted.process.kill)
            counted.read()
            for row in rows:
                if row.warm is not None:
                    counted.tell(with_url(row.warm, self._url))
            counted.control("--instr=on")
            yield counted

    def rows(self, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
        """Yield the names of rows with the instructions of a unit."""
        warm = [row for row in rows if row.warm is not None]
        if warm:
            with self._process(warm) as counted:
                nothing = counted.count_case(with_url(NOTHING, self._url))
                for row in warm:
                    total = counted.count_case(with_url(row.case, self._url))
                    yield row.name, (total - nothing) / row.units
        for row in rows:
            if row.warm is None:
                with self._process([]) as counted:
                    yield row.name, counted.count_case(with_url(row.case, self._url)) / row.units

    def _program(self, program: str) -> int:
        """Return the instructions of a process that runs a program; its modules are compiled before."""
        environment = {**os.environ, "PYTHONPATH": str(self._tree)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        counted = Counted(self._tree, next(self._folders), ["-c", program], at_start=True)
        counted.process.communicate()
        return counted.count()

    def program(self, program: str) -> float:
        """Return the instructions of a process that runs a program, less those of one that does nothing."""
        if self._nothing is None:
            self._nothing = self._program("pass")
        return self._program(program) - self._nothing


def shown(instructions: float) -> str:
    """Return a count as it is printed, in thousands."""
    return f"{instructions / 1000:,.0f}"


class Table:
    """Prints rows as they come, and keeps them.

    Args:
        other: the counts to compare with; None if there are none.
    """

    def __init__(self, other: Mapping[str, float] | None) -> None:
        self._other = other
        self.figures: dict[str, float] = {}
        further = [] if other is None else ["before", "change"]
        print_line(["thousands of instructions", "agentloop", *further])
        print_line(["---", *["---:"] * (1 + len(further))])

    def add(self, name: str, instructions: float) -> None:
        """Print a row."""
        cells = [name, shown(instructions)]
        if self._other is not None:
            before = self._other.get(name)
            cells += ["-", "-"] if before is None else [shown(before), change(instructions / before)]
        print_line(cells)
        self.figures[name] = instructions


def change(ratio: float) -> str:
    """Return a ratio in percent; `!` marks one that is over what is allowed."""
    return f"{(ratio - 1) * 100:+.1f}%{' !' if ratio > ALLOWED else ''}"


def counts(tree: Path, names: Sequence[str], url: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the names of rows with the instructions of a unit.

    Args:
        tree: the folder of the package and its benchmarks.
        names: parts of the names of rows; all rows if there are none.
        url: the server.
        folder: where subjects can write.
    """

    def wanted(name: str) -> bool:
        return not names or any(part in name for part in names)

    subject = Subject(tree, url, folder)
    yield from subject.rows([row for row in ROWS if wanted(row.name)])
    for name, program in PROGRAMS.items():
        if wanted(name):
            yield name, subject.program(program)


def other_counts(compared: Path, names: Sequence[str], url: str, folder: Path) -> Mapping[str, float]:
    """Return the counts of another tree, or those that a file has."""
    if compared.is_file():
        saved: dict[str, float] = json.loads(compared.read_text())
        return saved
    return dict(counts(compared.resolve(), names, url, folder))


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="rows whose names contain one of these")
    parser.add_argument(
        "--compare", type=Path, metavar="TREE", help="the folder of another version, or a file that --save wrote"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the counts as JSON")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    options = parse()
    missing = [name for name in ("valgrind", "callgrind_control") if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"There is no {' or '.join(missing)} on the path: install valgrind, such as with apt-get install valgrind."
        )
    with loopback() as url, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compared = options.compare
        other = None if compared is None else other_counts(compared, options.only, url, folder / "other")
        table = Table(other)
        for name, instructions in counts(TREE, options.only, url, folder / "own"):
            table.add(name, instructions)
    if options.save:
        options.save.write_text(json.dumps(table.figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
