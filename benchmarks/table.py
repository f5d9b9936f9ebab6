"""Measures agentloop, plain and with the extra `fast`, beside a loop written by hand and beside other libraries.

    python benchmarks/table.py [--only ROW …] [--rounds N] [--peers] [--save FILE] [--quick]

Each subject runs in a process and an environment of its own. In each round every subject does the same work, in an order that
rotates, and a figure is a ratio to the floor *of the same round*: the median of all rounds, with the lowest and the highest.
`BENCHMARK_ENVIRONMENTS` names the folder of the environments (`make bench` and `make bench-peers` make them).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen
from measuring import loopback
from peers import IMPORTS, PEERS

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
ENVIRONMENTS = Path(os.environ.get("BENCHMARK_ENVIRONMENTS", HERE.parent))
OWN = ("agentloop", "fast")
FLOOR = "floor"
DRIFT = 1.25
"""From this ratio of a figure to the committed one on, a line says so."""
DEFINITION = """
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

loop = AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:any", api_key="key"))), [add])
"""


@frozen
class Row:
    """One line of the table.

    Attributes:
        name: what is measured.
        case: what the subjects are told; `{url}` in its values stands for the server.
        figure: the member of a subject's answer that counts.
        budgets: the highest ratios to the floor, plain and fast; None where there is none.
        units: by what the floor's figure is divided, to be shown.
        rounds: how many rounds there are, as a factor of the usual number.
        fresh: whether each round starts new processes.
        base: what the ratio is to: the floor, or the same subject with this tool.
        peers: whether other libraries are measured, too.
        warm: whether the case runs once, unmeasured, before each measurement: a client may have closed its idle connections while the
            others were measured, and would open them anew.
    """

    name: str
    case: Mapping[str, Any]
    figure: str = "cpu"
    budgets: tuple[float | None, float | None] = (None, None)
    units: int = 1
    rounds: float = 1.0
    fresh: bool = False
    base: str = FLOOR
    peers: bool = True
    warm: bool = False


def _turns(path: str, tool: str = "async", **options: Any) -> dict[str, Any]:
    return {"case": "turns", "url": f"{{url}}/{path}/v1", "tool": tool, **options}


def _stream(path: str, chunks: int, repeat: int) -> dict[str, Any]:
    return {"case": "stream", "url": f"{{url}}/{path}-{chunks}/v1", "chunks": chunks, "repeat": repeat}


ROWS = [
    Row("a turn of 10, plain tool", _turns("10x1", "plain", repeat=10), budgets=(1.15, 0.65), units=100),
    Row("a turn of 10, async tool", _turns("10x1", repeat=10), budgets=(1.15, 0.65), units=100),
    Row("a turn at 200 turns", _turns("200x1"), budgets=(0.75, 0.4), units=200, rounds=0.6),
    Row("a turn at 400 turns", _turns("400x1"), budgets=(0.75, 0.4), units=400, rounds=0.4),
    Row("200 executions at once", _turns("5x1", at_once=200), budgets=(1.0, 0.2), units=1000, rounds=0.4, warm=True),
    Row("a chunk, burst", _stream("burst", 1000, 5), budgets=(1.5, 0.6), units=5000),
    Row("a chunk, paced", _stream("paced", 500, 1), budgets=(1.2, 0.6), units=500, rounds=0.6),
    Row("the first token, wall", _stream("burst", 20, 20), "first", units=1, rounds=0.6),
    Row("creation and the first call", {**_turns("1x1"), "case": "first"}, budgets=(6.0, None), fresh=True),
    Row("50 async tools of 20 ms, wall", _turns("2x50", "wait async"), "wall", rounds=0.6, peers=False),
    Row("50 plain tools of 20 ms, wall", _turns("2x50", "wait plain"), "wall", rounds=0.6, peers=False),
    Row(
        "memory of 200 at once",
        {"case": "memory", "url": "{url}/5x1/v1", "warm": "{url}/2x1/v1", "at_once": 200},
        "bytes",
        units=200,
        rounds=0.3,
        fresh=True,
    ),
    Row(
        "memory of 1,000 that wait for a model",
        {"case": "memory", "url": "{url}/held-1000/v1", "warm": "{url}/1x1/v1", "at_once": 1000},
        "bytes",
        units=1000,
        rounds=0.2,
        fresh=True,
    ),
    Row(
        "memory of 10,000 messages",
        {"case": "conversation", "messages": 10_000},
        "bytes",
        units=10_000,
        rounds=0.2,
        fresh=True,
    ),
    Row(
        "a turn with labels",
        _turns("10x1", "async labels", repeat=10),
        budgets=(1.1, None),
        units=100,
        base="async",
        peers=False,
    ),
    Row(
        "a turn at 200 turns with labels",
        _turns("200x1", "async labels"),
        budgets=(1.1, None),
        units=200,
        rounds=0.6,
        base="async",
        peers=False,
    ),
    Row(
        "a turn with SQLite, normal",
        _turns("10x1", "async normal", repeat=10),
        budgets=(1.5, None),
        units=100,
        base="async",
        peers=False,
    ),
    Row(
        "a turn with SQLite, full",
        _turns("10x1", "async full", repeat=10),
        budgets=(2.5, None),
        units=100,
        base="async",
        peers=False,
    ),
]


LINES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a turn at 20,000 turns, as a ratio to one at 2,500": (
        {"case": "own", "name": "growth", "turns": 20_000, "early": 2_500, "window": 500},
        "ratio",
        (),
    ),
    "memory of an execution that waits for an approval": (
        {"case": "own", "name": "suspended", "count": 10_000},
        "bytes",
        ("pydantic-ai", "openai-agents"),
    ),
}
"""What has no floor, with the member of the answer and the other libraries that are measured by it."""


class Process:
    """A subject in a process.

    Args:
        name: its name.
        folder: where it can write.
    """

    def __init__(self, name: str, folder: str) -> None:
        module = "agentloop" if name in OWN else name
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "BENCHMARK_FOLDER": folder}
        self._process = subprocess.Popen(
            [python_of(name), str(HERE / "subject.py"), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"a subject has ended with code {self._process.wait()}")
        return line

    def measure(self, case: Mapping[str, Any]) -> dict[str, float]:
        """Run a case, and return what it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(case)}\n")
        self._process.stdin.flush()
        result: dict[str, float] = json.loads(self._read())
        return result

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@frozen
class Result:
    """The figures of one subject in one row.

    Attributes:
        ratios: the ratio to the base, of each round.
        values: the figure itself, of each round.
    """

    ratios: tuple[float, ...] = field(converter=tuple[float, ...])
    values: tuple[float, ...] = field(converter=tuple[float, ...])

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({min(self.ratios):.2f}-{max(self.ratios):.2f})"

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)


def python_of(name: str) -> str:
    """Return the Python that has a subject."""
    folder = {FLOOR: ".venv-plain", "agentloop": ".venv-plain", "fast": ".venv-fast"}.get(
        name, f".venv-libraries/{name}"
    )
    return str(ENVIRONMENTS / folder / "bin" / "python")


def available(names: Sequence[str]) -> list[str]:
    """Return the subjects that have an environment."""
    return [name for name in names if Path(python_of(name)).exists()]


@contextmanager
def processes(names: Sequence[str], folder: str) -> Iterator[dict[str, Process]]:
    """Start the subjects, and end them afterwards."""
    with ExitStack() as stack:
        started = {}
        for name in names:
            started[name] = Process(name, folder)
            stack.callback(started[name].close)
        yield started


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Return the names, beginning at another one."""
    at = by % len(names)
    return [*names[at:], *names[:at]]


def with_url(case: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the case with the address of the server."""
    return {name: value.replace("{url}", url) if isinstance(value, str) else value for name, value in case.items()}


def measure(row: Row, names: Sequence[str], url: str, rounds: int, folder: str) -> dict[str, Result]:
    """Measure a row."""
    case = with_url(row.case, url)
    values: dict[str, list[float]] = {name: [] for name in names}
    bases: list[dict[str, float]] = []

    def one_round(started: Mapping[str, Process], number: int) -> None:
        measured, base = {}, {}
        for name in rotated(names, number):
            if row.base != FLOOR:
                base[name] = started[name].measure({**case, "tool": row.base})[row.figure]
            if row.warm:
                started[name].measure(case)
            measured[name] = started[name].measure(case)[row.figure]
        for name in names:
            values[name].append(measured[name])
        bases.append(base or dict.fromkeys(names, measured[FLOOR]))

    count = max(3, round(rounds * row.rounds))
    if row.fresh:
        for number in range(count):
            with processes(names, folder) as started:
                one_round(started, number)
    else:
        with processes(names, folder) as started:
            for process in started.values():  # what is made once is not measured
                process.measure(case)
            for number in range(count):
                one_round(started, number)
    return {
        name: Result([value / base[name] for value, base in zip(values[name], bases, strict=True)], values[name])
        for name in names
    }


# --- imports ------------------------------------------------------------------------------------------------------------


def measure_imports(programs: Mapping[str, tuple[str, str]], rounds: int, base: str) -> dict[str, Result]:
    """Return the wall seconds of new processes that run programs, as ratios to one of them. The start of Python is subtracted.

    Args:
        programs: the Python and the program of each.
        rounds: how many rounds there are.
        base: the program that the ratios are to.
    """
    values: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONPATH": str(HERE.parent)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def seconds(python: str, program: str) -> float:
            before = time.perf_counter()
            subprocess.run([python, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
            return time.perf_counter() - before

        for python, program in programs.values():
            seconds(python, program)  # compiles
        for number in range(rounds):
            for name in rotated(list(programs), number):
                python, program = programs[name]
                values[name].append(seconds(python, program) - seconds(python, "pass"))
    return {
        name: Result([each / floor for each, floor in zip(values[name], values[base], strict=True)], values[name])
        for name in programs
    }


def import_results(names: Sequence[str], rounds: int) -> dict[str, dict[str, Result]]:
    """Measure `import agentloop` and the definition of an agent."""
    own = [name for name in names if name in OWN]
    base = (python_of(FLOOR), "import asyncio, attrs")
    facade = measure_imports(
        {FLOOR: base, **{name: (python_of(name), "import agentloop") for name in own}}, rounds, FLOOR
    )
    definitions = {
        name: (python_of(name), DEFINITION if name in OWN else IMPORTS[name]) for name in names if name != FLOOR
    }
    return {
        "import agentloop": facade,
        "defining an agent": measure_imports({FLOOR: base, **definitions}, rounds, FLOOR),
    }


def lines(names: Sequence[str], rounds: int, folder: str, only: Callable[[str], bool]) -> Iterator[str]:
    """Yield a line for each subject of what has no floor."""
    for name, (case, figure, peers) in LINES.items():
        if not only(name):
            continue
        for subject in [each for each in names if each in OWN or each in peers]:
            values = []
            for _ in range(max(1, rounds // 5)):
                # The figures are those of one execution, and other libraries take long for many.
                smaller = {} if subject in OWN else {"count": case["count"] // 20}
                with processes([subject], folder) as started:
                    values.append(started[subject].measure({**case, **smaller})[figure])
            unit = 1024 if figure == "bytes" else 1
            low, middle, high = (each / unit for each in (min(values), statistics.median(values), max(values)))
            yield f"{name}, {subject}: {middle:.2f} ({low:.2f}-{high:.2f}){' KiB' if figure == 'bytes' else ''}"


IMPORT_BUDGETS: dict[str, tuple[float | None, float | None]] = {
    "import agentloop": (None, None),
    "defining an agent": (1.6, 1.6),
}


# --- the table ----------------------------------------------------------------------------------------------------------


def unit_of(row: Row | None, value: float) -> str:
    """Return the floor's figure, as it is shown."""
    if row is not None and row.figure == "bytes":
        size = value / row.units
        return f"{size / 1024:.0f} KiB" if size >= 1024 else f"{size:.0f} bytes"
    seconds = value / (row.units if row is not None else 1)
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def print_line(cells: Sequence[str]) -> None:
    """Print a line of the table, which is Markdown."""
    print("| " + " | ".join(cells) + " |", flush=True)


class Report:
    """Prints rows as they come, and keeps them.

    Args:
        names: the subjects.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name for name in names if name != FLOOR]
        self.figures: dict[str, dict[str, list[float]]] = {}
        print_line(["CPU, as a ratio to the floor", "floor", *self._names, "budget"])
        print_line(["---", *["---:"] * (len(self._names) + 1), "---"])

    def add(
        self, name: str, results: Mapping[str, Result], budgets: tuple[float | None, float | None], row: Row | None
    ) -> None:
        """Print a row; a figure over its budget is marked with `!`."""
        limits = dict(zip(OWN, budgets, strict=True))
        cells = []
        for each in self._names:
            if each not in results:
                cells.append("-")
                continue
            limit = limits.get(each)
            cells.append(f"{results[each]}{' !' if limit is not None and results[each].ratio > limit else ''}")
        base = results[FLOOR].values if FLOOR in results else next(iter(results.values())).values
        shown = unit_of(row, statistics.median(base)) if FLOOR in results else "without: 1"
        budget = " / ".join("-" if each is None else f"{each:g}" for each in budgets)
        print_line([name, shown, *cells, budget])
        self.figures[name] = {
            each: [round(figure, 3) for figure in (result.ratio, min(result.ratios), max(result.ratios))]
            for each, result in results.items()
            if each != FLOOR
        }


def drift_of(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    """Yield a line for each figure of ours that differs from the committed one by more than its spread and a quarter."""
    committed = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    for row, subjects in figures.items():
        for name in OWN:
            if name not in subjects or name not in committed.get(row, {}):
                continue
            now, before = subjects[name], committed[row][name]
            if now[1] > before[0] * DRIFT or now[2] * DRIFT < before[0]:
                yield f"DRIFT {row}, {name}: {now[0]:.2f} ({now[1]:.2f}-{now[2]:.2f}), committed {before[0]:.2f}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="rows whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a row (15)")
    parser.add_argument("--peers", action="store_true", help="measure the other libraries, too")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the ratios as JSON, as in baseline.json")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, to see a drift")
    return parser.parse_args(arguments)


def selected(options: argparse.Namespace, name: str) -> bool:
    """Return whether a row is wanted."""
    return not options.only or any(part in name for part in options.only)


def main() -> None:
    """Print the table."""
    options = parse()
    rounds = max(3, options.rounds // 5) if options.quick else options.rounds
    names = available([FLOOR, *OWN, *(PEERS if options.peers else ())])
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {rounds} rounds\n"
    )
    report, further = Report(names), list[str]()
    with loopback() as server, tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if not selected(options, row.name):
                continue
            wanted = [name for name in names if name in (FLOOR, *OWN) or row.peers]
            if row.base != FLOOR:
                wanted = [name for name in wanted if name != FLOOR]
            report.add(row.name, measure(row, wanted, server, rounds, folder), row.budgets, row)
        further += lines(names, rounds, folder, partial(selected, options))
    if selected(options, "import agentloop") or selected(options, "defining an agent"):
        for name, results in import_results(names, rounds).items():
            report.add(name, results, IMPORT_BUDGETS[name], None)
    print("", *further, *drift_of(report.figures), sep="\n")
    if options.save:
        options.save.write_text(json.dumps(report.figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
