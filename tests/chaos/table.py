"""The table of chaos runs: `python -m tests.chaos.table [--only NAME …] [--stores …] [--kinds …] [--seeds 1 2] [--count 24]`.

Each line is a chaos run: three workers, 24 executions of 15 calls, and a fault. The exit code is 1 when an effect was lost or
doubled, a doubt was not reported, or anything else is wrong. At the end stands the same work on DBOS steps alone.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos import dbos_alone
from tests.chaos.account import Account
from tests.chaos.faults import FAULTS, POSTGRES, SQLITE, Bench, Fault
from tests.chaos.fleet import ENGINE, PLAIN, QUEUED
from tests.postgres import PostgresServer

HEAD = (
    "fault",
    "database",
    "workers",
    "seed",
    "runs",
    "calls",
    "once",
    "doubts",
    "again",
    "LOST",
    "DOUBLED",
    "UNTOLD",
    "WRONG",
    "s",
)
_WIDTHS = (28, 10, 21, 4, 5, 5, 5, 6, 5, 4, 7, 6, 5, 6)


def play(fault: Fault, bench: Bench) -> Account:
    """Play a fault; what it raises is wrong."""
    try:
        return fault.run(bench)
    except Exception as error:  # noqa: BLE001  # the table goes on with the other faults
        notes = " ".join(getattr(error, "__notes__", ()))
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Account(wrong=[f"{type(error).__name__} in {place.name}: {error} {notes}"])


def print_cells(cells: Sequence[object]) -> None:
    """Print a line of the table."""
    columns = [
        str(cell).ljust(width) if index < 3 else str(cell).rjust(width)
        for index, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    sys.stdout.write("  ".join(columns) + "\n")
    sys.stdout.flush()


def print_account(fault: Fault, bench: Bench, account: Account, seconds: float) -> None:
    """Print the line of a chaos run, and what is wrong with it."""
    counts = (account.executions, account.calls, account.once, account.in_doubt, account.repeated)
    bad = [len(account.lost), len(account.doubled), len(account.unreported), len(account.wrong)]
    print_cells((fault.name, bench.store, bench.kind, bench.seed, *counts, *bad, f"{seconds:.1f}"))
    for problem in account.problems[:20]:
        sys.stdout.write(f"    WRONG: {problem}\n")
    for name, value in account.notes.items():
        sys.stdout.write(f"    {name}: {value}\n")
    sys.stdout.flush()


def runs(options: argparse.Namespace) -> Iterator[tuple[Fault, str, str, int]]:
    """Yield the chaos runs that the options select."""
    for fault in FAULTS:
        if options.only and fault.name not in options.only:
            continue
        for store in [store for store in fault.stores if store in options.stores]:
            for kind in [kind for kind in fault.kinds if kind in options.kinds]:
                yield from [(fault, store, kind, seed) for seed in options.seeds]


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="tests.chaos.table")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--stores", nargs="*", default=[SQLITE, POSTGRES])
    parser.add_argument("--kinds", nargs="*", default=[PLAIN, ENGINE, QUEUED])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--alone", action=argparse.BooleanOptionalAction, default=True, help="with DBOS steps alone")
    return parser.parse_args()


def main() -> int:
    """Print the table; return 1 when something is wrong."""
    options, bad, started = read_options(), 0, time.monotonic()
    print_cells(HEAD)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes of the run are ended, too
    with TemporaryDirectory(prefix="agentloop-chaos-") as name, closing(PostgresServer()) as server:
        for number, (fault, store, kind, seed) in enumerate(runs(options)):
            own = server if store == POSTGRES else None
            bench = Bench(Path(name) / str(number), store, kind, seed, options.count, own)
            begun = time.monotonic()
            account = play(fault, bench)
            print_account(fault, bench, account, time.monotonic() - begun)
            bad += len(account.problems)
        sys.stdout.write(f"{bad} problems, {time.monotonic() - started:.0f} seconds\n")
        if options.alone:
            dbos_alone.print_table(Path(name), kills=4, seeds=options.seeds)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
