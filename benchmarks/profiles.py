"""Says where the processor time of the rows of `table.py` goes: by room of the package, and by library.

    python benchmarks/profiles.py [--only ROW …] [--seconds N]

py-spy looks a thousand times per second at the thread of a subject that holds the lock of the interpreter, while the subject repeats the
case of a row. What it sees counts for the file of the innermost Python function, so what is written in C counts for its caller. What
threads do without the lock, such as waiting, reading and writing, is not seen. New processes run under cProfile, by the same rule.
`make bench-profiles` makes the environment.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pstats import Stats
from typing import Any, TypeAlias

from measuring import loopback
from table import DEFINITION, HERE, OWN, ROWS, Process, Row, available, python_of, with_url

PACKAGE = HERE.parent / "agentloop"
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
RATE = 1000
RUNS = 15
"""How many new processes are looked at, in rows of new processes."""
Function: TypeAlias = tuple[str, int, str]
"""A function as cProfile knows it: its file, its line and its name."""
BUILT_IN = "~"
"""The file of functions that are written in C."""
SHOWN = 0.03
"""The smallest share that has a name of its own."""
FIRST_CALL = """
import asyncio, sys
sys.path.insert(0, {here!r})
from agentloop_subject import agent
asyncio.run(agent({url!r}, "async")())
"""
PY_SPY = ["py-spy", "record", "--gil", "--rate", str(RATE), "--format", "raw", "--full-filenames", "--output"]


def place_of(file: str) -> str:
    """Return the room of the package, or the library, to which a file belongs."""
    path = Path(file)
    for folder, prefix in ((PACKAGE, "agentloop."), (Path(STANDARD_LIBRARY), "")):
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            return prefix + path.relative_to(folder).parts[0].removesuffix(".py")
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1].removesuffix(".py")
    if file.startswith("<attrs generated"):
        return f"attrs, generated for {file.partition(' methods ')[2].split('.')[0] or 'classes'}"
    names = {"<frozen importlib": "import", str(HERE): "the benchmark"}
    return next((name for start, name in names.items() if file.startswith(start)), file or "the start of Python")


def samples(file: Path) -> Counter[str]:
    """Return how often each place was seen, while something was measured."""
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        innermost = re.fullmatch(r"(.*) \((.*?)(?::\d+)?\)", stack.rpartition(";")[2])
        # `timed` collects garbage before the clock starts.
        if innermost is None or innermost[1] != "timed":
            found[place_of(innermost[2] if innermost else stack)] += int(count)
    return found


def profile_process(name: str, case: Mapping[str, Any], seconds: float, folder: str) -> Counter[str]:
    """Return what a subject does while it repeats a case."""
    process, out = Process(name, folder), Path(folder) / "samples.txt"
    try:
        process.measure(case)
        command = [*PY_SPY, str(out), "--pid", str(process.pid), "--duration", str(round(seconds))]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as spy:
            while spy.poll() is None:
                process.measure(case)
        return samples(out)
    finally:
        process.close()


def profile_program(name: str, program: str, folder: str) -> Counter[str]:
    """Return where new processes of a program spend their time, in microseconds."""
    found: Counter[str] = Counter()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "BENCHMARK_FOLDER": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    out = Path(folder) / "profile"
    # py-spy would need seconds: it sees a process that lives for a tenth of one mostly where it stops it.
    code = f"import cProfile; cProfile.run({program!r}, {str(out)!r})"
    for _ in range(RUNS):
        subprocess.run([python_of(name), "-c", code], check=True, env=environment)
        measured: Mapping[Function, tuple[int, int, float, float, Mapping[Function, Sequence[float]]]]
        measured = vars(Stats(str(out)))["stats"]
        for (file, _, _), (_, _, own, _, callers) in measured.items():
            of_callers = [(caller, shares[2]) for (caller, _, _), shares in callers.items()]
            for place, seconds in of_callers if file == BUILT_IN else [(file, own)]:
                found[place_of(place)] += round(seconds * 1e6)
    return found


def described(found: Counter[str]) -> str:
    """Return the shares, the largest first."""
    total = max(found.total(), 1)
    shares = [(place, count / total) for place, count in found.most_common()]
    shown = [f"{place} {share:.0%}" for place, share in shares if share >= SHOWN]
    return ", ".join([*shown, f"others {sum(share for _, share in shares if share < SHOWN):.0%}"])


def profiles(row: Row, url: str, seconds: float, folder: str) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the name of each subject of ours with what it does in a row."""
    case = with_url(row.case, url)
    for name in available(OWN):
        if row.fresh:
            program = FIRST_CALL.format(here=str(HERE), url=case["url"])
            yield name, profile_program(name, program, folder)
        else:
            yield name, profile_process(name, case, seconds, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each row and subject."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="ROW", help="rows whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds for which a row is repeated (6)")
    options = parser.parse_args(arguments)

    def wanted(name: str) -> bool:
        return any(part in name for part in options.only)

    def show(row: str, name: str, found: Counter[str]) -> None:
        sys.stdout.write(f"- {row}, {name}: {described(found)}.\n")
        sys.stdout.flush()

    with loopback() as url, tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if row.figure == "cpu" and wanted(row.name):
                for name, found in profiles(row, url, options.seconds, folder):
                    show(row.name, name, found)
        for name in available(OWN):
            if wanted("defining an agent"):
                show("defining an agent", name, profile_program(name, DEFINITION, folder))


if __name__ == "__main__":
    main()
