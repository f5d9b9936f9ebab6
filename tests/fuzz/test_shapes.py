"""Steps of every reader for hostile shapes of text: proportional to the text, and few per character."""

from __future__ import annotations

from heapq import nlargest

import pytest

from tests.fuzz.readers import READERS as ALL_READERS
from tests.fuzz.shapes import READERS, read, shapes, steps
from tests.generated import part_of

SHORT, LONG = 120, 1_600
WORST = 4
FIXED = 3_000
PER_CHARACTER = 600


LONG_WAYS = {"calls in text", "calls in a stream"}
"""They read in a dozen formats; `tests/models/text_calls/test_hostile.py` counts their steps for shapes of its own in every run."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if name in LONG_WAYS else name for name in READERS]
)
def test_steps_are_proportional_to_the_text(name: str) -> None:
    """Each character takes a bounded number of steps, and a text of twice the length at most 2.5 times the steps."""
    reader = READERS[name]
    read(reader, "\n".join(reader.tokens))  # what is prepared at the first use does not count
    counts = {shape: steps(reader, text) for shape, text in part_of([*shapes(reader.tokens, SHORT)])}
    # Steps grow faster up to the deepest nesting that is read, so that longer texts are compared.
    worst = nlargest(WORST, counts, key=counts.__getitem__)
    assert counts[worst[0]] <= FIXED + PER_CHARACTER * SHORT, worst[0]
    long, longer = (dict(shapes(reader.tokens, length)) for length in (LONG, 2 * LONG))
    for shape in worst:
        assert steps(reader, longer[shape]) <= 2.5 * steps(reader, long[shape]) + FIXED, shape


MEASURED_ONLY = {"traces", "AG-UI, runs"}
"""Their documents need an event loop for each reading: `make fuzz` measures them."""


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, reader in ALL_READERS.items()
        if reader.documents and not reader.is_bounded and name not in MEASURED_ONLY
    ],
)
def test_steps_are_proportional_to_a_document(name: str) -> None:
    """A document of which one part is twice as long takes at most 2.5 times the steps, for each part that can grow.

    The way in which it is read may change at one length.
    """
    reader = ALL_READERS[name]
    for shape, make in part_of([*reader.documents.items()]):
        # What is prepared at the first use does not count. The short one comes first: its parts are known afterwards.
        read(reader, make(LONG // 100))
        short, long = [steps(reader, make(length)) for length in (LONG, 2 * LONG)]
        if (
            long > 2.5 * short + FIXED
        ):  # a long document may be read in another way, which takes more steps from the start
            short, long = long, steps(reader, make(4 * LONG))
        assert long <= 2.5 * short + FIXED, shape
