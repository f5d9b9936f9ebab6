"""How the processor time of every reader grows with its input: `python -m tests.fuzz.slopes [part of a reader's name]`.

Each reader is measured with the worst of its shapes at four sizes. The slope of the logarithm of the time over that of the size
is 1 where the time is proportional, and 2 where it is quadratic.

Processor time is measured, since the machine may be busy. A measurement that exceeds a limit is repeated before it counts. A slope
is then measured without two effects that look like growth between a short document and a long one, although their share of each
object stays bounded. They do count for the times and the holds.

- The garbage collector makes its first full pass at some tens of thousands of objects.
- The system clears each page of memory that a process gets. A short document fits into pages that the process has already.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import Any, Final

from attrs import frozen

from tests.fuzz import shapes
from tests.fuzz.readers import READERS
from tests.fuzz.shapes import Reader, read

MAX_SLOPE: Final = 1.25
"""The slope that counts as linear: caches and the allocator take part of it."""

MAX_HOLD: Final = 0.1
"""Seconds for which a reader keeps the event loop from going on."""

MAX_MICROSECONDS: Final = 50.0
"""Microseconds for each character, in a thread or not."""

_SECONDS_OF_SHAPE: Final = 120
"""Seconds of processor time after which a shape has failed."""

_STEPS: Final = (27, 9, 3, 1)
_SHORT, _LONGER = 300, 1_200
_WORST: Final = 3
_AGAIN: Final = 3
_SHORTEST_TIME: Final = 2e-3
"""Seconds below which a time at the largest size says nothing about a slope."""

Make = Callable[[int], Any]


@frozen
class Measured:
    """What a shape took.

    Attributes:
        shape: its name.
        slope: the slope of the logarithms; 0 if the times are too short for one.
        microseconds: microseconds for each character of the largest size.
        hold: the longest time for which the event loop cannot go on, in seconds.
        misses: what exceeds a limit.
    """

    shape: str
    slope: float
    microseconds: float
    hold: float
    misses: str


class TookTooLong(BaseException):
    """A shape takes much more time than any that is proportional; no reader may take it for an outcome."""


def seconds(reader: Reader, text: Any, times: int = 1) -> float:
    """Return the processor time of a reader for a text: the least of some trials."""
    best = math.inf
    for _ in range(times):
        started = time.thread_time()
        read(reader, text)
        taken = time.thread_time() - started
        best = min(best, taken)
    return best


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_LIBC: Final = ctypes.CDLL(None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The options of `mallopt` from which size on memory is given back, and large blocks are mapped on their own."""
_MEMORY, _BLOCK = 1 << 28, 1 << 9


def in_thread(reader: Reader, text: Any) -> tuple[float, float]:
    """Let a reader read a text in a thread.

    Returns:
        Its processor time, and the longest part of it for which it kept the interpreter from this thread, in seconds: a library in
        C gives the interpreter back only when its function has returned.
    """
    taken, may_read, has_read, is_measured = math.inf, Event(), Event(), Event()

    def read_in_thread() -> None:
        nonlocal taken
        may_read.wait()
        taken = seconds(reader, text)
        has_read.set()
        is_measured.wait()  # the clock of a thread can be read until its end

    thread = Thread(target=read_in_thread)
    thread.start()
    try:
        clock, hold, wanted = time.pthread_getcpuclockid(thread.ident or 0), 0.0, _Timespec()
        # A function that ctypes calls needs the interpreter only when it has returned: from then on, this thread waits for it. The
        # first call stands before the reader starts, which may keep the interpreter at once.
        _LIBC.clock_gettime(clock, ctypes.byref(wanted))
        may_read.set()
        is_over = False
        while not is_over:
            hold = max(hold, time.clock_gettime(clock) - wanted.seconds - wanted.nanoseconds * 1e-9)
            is_over = has_read.is_set()
            _LIBC.clock_gettime(clock, ctypes.byref(wanted))
        return taken, hold
    finally:
        may_read.set()
        is_measured.set()
        thread.join()


def longest(reader: Reader, make: Make) -> tuple[float, float]:
    """Return the processor time of the largest size, and the longest time for which the event loop cannot go on, in seconds.

    A time that is too long is the least of some trials.
    """
    taken = hold = math.inf
    for _ in range(_AGAIN):
        at_once = seconds(reader, make(int(min(reader.longest, reader.thread_from))))
        now, kept = in_thread(reader, make(reader.longest)) if reader.longest > reader.thread_from else (at_once, 0.0)
        taken, hold = min(taken, now), min(hold, max(at_once, kept))
        if hold <= MAX_HOLD and taken <= MAX_MICROSECONDS * 1e-6 * reader.longest:
            break
    return taken, hold


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms, by least squares."""
    points = [(math.log(size), math.log(max(taken, 1e-6))) for size, taken in zip(sizes, times, strict=True)]
    mean_size = sum(x for x, _ in points) / len(points)
    mean_time = sum(y for _, y in points) / len(points)
    return sum((x - mean_size) * (y - mean_time) for x, y in points) / sum((x - mean_size) ** 2 for x, _ in points)


def measure(reader: Reader, shape: str, make: Make) -> Measured:
    """Measure a reader with one shape at four sizes."""
    *sizes, size = [reader.longest // step for step in _STEPS]
    taken, hold = longest(reader, make)
    grows = 0.0
    if taken > _SHORTEST_TIME and not reader.is_bounded:
        grows = slope([*sizes, size], [*[seconds(reader, make(each)) for each in sizes], taken])
        for _ in range(_AGAIN):
            if grows <= MAX_SLOPE:
                break
            with _undisturbed():
                times = [seconds(reader, make(each), _AGAIN) for each in (*sizes, size)]
            grows = min(grows, slope([*sizes, size], times))
    per_character = taken * 1e6 / size
    misses = [
        "slope" * (grows > MAX_SLOPE),
        "hold" * (hold > MAX_HOLD),
        "time" * (per_character > MAX_MICROSECONDS),
    ]
    return Measured(shape, grows, per_character, hold, " ".join(filter(None, misses)))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Measure without the garbage collector, and in memory that the process has already."""
    gc.collect()
    gc.disable()
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        _LIBC.mallopt(option, _MEMORY)
    # Python gives memory back by the megabyte: a block in each stays in use, and the others are free for what is measured.
    blocks = [bytes(_BLOCK) for _ in range(_MEMORY // _BLOCK)]
    blocks = blocks[:: (1 << 20) // _BLOCK]
    try:
        yield
    finally:
        del blocks
        gc.enable()


def makers(reader: Reader) -> Iterator[tuple[str, Make]]:
    """Yield the shapes of a reader that are measured: all documents, and of the texts those that take the longest or grow fastest."""
    yield from reader.documents.items()
    texts = dict(shapes.makers(reader.tokens))
    times = {shape: seconds(reader, make(_LONGER)) for shape, make in texts.items()}
    growth = {shape: times[shape] / max(seconds(reader, texts[shape](_SHORT)), 1e-6) for shape in texts}
    for shape in {shape: None for by in (times, growth) for shape in sorted(by, key=by.__getitem__)[-_WORST:]}:
        yield shape, texts[shape]


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TookTooLong


def measure_all(name: str) -> tuple[str, list[Measured]]:
    """Measure a reader with all its shapes, in a process of its own."""
    signal.signal(signal.SIGPROF, _stop)
    reader = READERS[name]
    read(reader, next(iter(reader.documents.values()))(100) if reader.documents else "a")
    measured, shape = list[Measured](), "the search for the worst shapes"
    try:
        signal.setitimer(signal.ITIMER_PROF, _SECONDS_OF_SHAPE * 10)
        for shape, make in makers(reader):
            signal.setitimer(signal.ITIMER_PROF, _SECONDS_OF_SHAPE)
            measured.append(measure(reader, shape, make))
    except TookTooLong:
        measured.append(Measured(shape, math.inf, math.inf, math.inf, "has not ended"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return name, measured


def row(name: str, measured: Sequence[Measured]) -> str:
    """Return the row of a reader in a table of Markdown: what its worst shapes took."""
    steepest = max(measured, key=lambda each: each.slope)
    slowest, hold = (max(getattr(each, field) for each in measured) for field in ("microseconds", "hold"))
    grows = f"{steepest.slope:.2f}" if steepest.slope else "-"
    shape = steepest.shape.replace("|", "\\|").replace("`", "'")[:60] if steepest.slope else ""
    return f"| {name} | {len(measured)} | {grows} | {slowest:.2f} | {hold * 1e3:.0f} | `{shape}` |".replace("``", "")


def main(part: str = "") -> int:
    """Measure the readers whose names have a part, each in a process; return 1 if one exceeds a limit."""
    warnings.simplefilter("ignore", FutureWarning)
    names = [name for name in READERS if part in name]
    sys.stdout.write(
        "| Reader | Shapes | Slope | µs per character | Held, ms | Steepest shape |\n|---|--:|--:|--:|--:|---|\n"
    )
    misses = list[str]()
    # What is loaded already is none of what a reader makes: the collector of the processes does not pass over it.
    gc.collect()
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for name, measured in pool.imap(measure_all, names, chunksize=1):
            sys.stdout.write(row(name, measured) + "\n")
            sys.stdout.flush()
            misses += [
                f"{name}: {each.shape}: {each.misses}: "
                f"slope {each.slope:.2f}, {each.microseconds:.2f} µs per character, held for {each.hold * 1e3:.0f} ms\n"
                for each in measured
                if each.misses
            ]
    sys.stdout.writelines(misses and ["\nThese exceed a limit:\n", *misses])
    return int(bool(misses))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
