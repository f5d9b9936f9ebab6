"""How the processor time of every reader grows with its input: `python -m tests.fuzz.slopes [part of a reader's name]`.

Each reader is measured with the worst of its shapes at four sizes. The slope of the logarithm of the time over that of the size
is 1 where the time is proportional, and 2 where it is quadratic.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from tests.fuzz import shapes
from tests.fuzz.readers import READERS
from tests.fuzz.shapes import Reader, read

MAX_SLOPE: Final = 1.25
"""The slope that counts as linear: caches and the allocator take part of it."""

MAX_HOLD: Final = 0.1
"""Seconds for an input that is read in the thread of the event loop."""

MAX_MICROSECONDS: Final = 20.0
"""Microseconds for each character, in a thread or not."""

_STEPS: Final = (27, 9, 3, 1)
_SHORT, _LONGER = 300, 2_400
_WORST: Final = 3
_SHORTEST_TIME: Final = 2e-3
"""Seconds below which a time at the largest size says nothing about a slope."""

Make = Callable[[int], Any]


@frozen
class Measured:
    """What a shape took.

    Attributes:
        shape: its name.
        slope: the slope of the logarithms.
        microseconds: microseconds for each character of the largest size.
        hold: the longest time in the thread of the event loop, in seconds.
        misses: what exceeds a limit.
    """

    shape: str
    slope: float
    microseconds: float
    hold: float
    misses: str


def seconds(reader: Reader, text: Any, times: int = 2) -> float:
    """Return the processor time of a reader for a text: the least of some trials."""
    best = math.inf
    for _ in range(times):
        started = time.thread_time()
        read(reader, text)
        taken = time.thread_time() - started
        best = min(best, taken)
    return best


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms, by least squares."""
    points = [(math.log(size), math.log(max(taken, 1e-6))) for size, taken in zip(sizes, times, strict=True)]
    mean_size = sum(x for x, _ in points) / len(points)
    mean_time = sum(y for _, y in points) / len(points)
    return sum((x - mean_size) * (y - mean_time) for x, y in points) / sum((x - mean_size) ** 2 for x, _ in points)


def measure(reader: Reader, shape: str, make: Make) -> Measured:
    """Measure a reader with one shape at four sizes."""
    sizes = [reader.longest // step for step in _STEPS]
    times = [seconds(reader, make(size)) for size in sizes]
    held = [reader.longest] if reader.thread_from > reader.longest else [int(reader.thread_from)]
    hold = 0.0 if not held[0] else times[-1] if held == sizes[-1:] else seconds(reader, make(held[0]))
    grows = slope(sizes, times)
    per_character = times[-1] * 1e6 / sizes[-1]
    misses = [
        "slope" * (grows > MAX_SLOPE and times[-1] > _SHORTEST_TIME and not reader.is_bounded),
        "hold" * (hold > MAX_HOLD),
        "time" * (per_character > MAX_MICROSECONDS),
    ]
    return Measured(shape, grows, per_character, hold, " ".join(filter(None, misses)))


def makers(reader: Reader) -> Iterator[tuple[str, Make]]:
    """Yield the shapes of a reader that are measured: all documents, and of the texts those that take the longest or grow fastest."""
    yield from reader.documents.items()
    texts = dict(shapes.makers(reader.tokens))
    times = {shape: seconds(reader, make(_LONGER), times=1) for shape, make in texts.items()}
    growth = {shape: times[shape] / max(seconds(reader, texts[shape](_SHORT), times=1), 1e-6) for shape in texts}
    for shape in {shape: None for by in (times, growth) for shape in sorted(by, key=by.__getitem__)[-_WORST:]}:
        yield shape, texts[shape]


def table(readers: Mapping[str, Reader]) -> bool:
    """Print the worst shape of each reader, and each shape that exceeds a limit; return whether one does."""
    has_missed = False
    sys.stdout.write(f"{'reader':26} {'shapes':>6} {'slope':>6} {'µs/char':>8} {'held, ms':>9}  steepest shape\n")
    for name, reader in readers.items():
        read(reader, next(iter(reader.documents.values()))(100) if reader.documents else "a")
        all_measured = [measure(reader, shape, make) for shape, make in makers(reader)]
        steepest = max(all_measured, key=lambda each: each.slope)
        slowest, held = (max(getattr(each, field) for each in all_measured) for field in ("microseconds", "hold"))
        sys.stdout.write(
            f"{name:26} {len(all_measured):6} {steepest.slope:6.2f} {slowest:8.2f} {held * 1e3:9.1f}  {steepest.shape[:60]}\n"
        )
        for each in all_measured:
            if each.misses:
                has_missed = True
                sys.stdout.write(
                    f"  MISS {each.misses}: {each.shape}: slope {each.slope:.2f}, {each.microseconds:.2f} µs/char, {each.hold * 1e3:.0f} ms\n"
                )
        sys.stdout.flush()
    return has_missed


def main(part: str = "") -> int:
    """Measure the readers whose names have a part; return 1 if one exceeds a limit."""
    warnings.simplefilter("ignore", FutureWarning)
    return int(table({name: reader for name, reader in READERS.items() if part in name}))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
