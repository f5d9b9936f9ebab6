"""The contract of a notation in which models write calls."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import Attempt
from agentloop.text_calls.source import Source


class TextFormat(ABC):
    """A notation: what a call in it may begin with, and how to read one.

    What must hold, whatever the text:

    - It is pure: the same text and tools give the same result, and nothing outside is read or changed.
    - It never raises. What cannot be read is left in the text, with a refusal where it looked like a call.
    - Nothing is evaluated, and what is returned stood in the text.
    - It looks at each character a bounded number of times and says how far it looked (`Outcome.reached`); whoever drives it
      keeps count and skips ahead where rereading would become too much.
    - It decides only by the text and by whether it has ended, never by the pieces in which it came.
    - What it has handed over is not taken back.
    """

    name: str
    """The name of the notation, as it appears on the calls."""

    clarity: int = 3
    """How clearly this is a call: 3 where nothing else is written like that, 2 for a block set apart from the text, 1 for a
    list or an object, 0 for what prose may hold. After other words, a call less clear than an earlier one only talks about it."""

    openings: tuple[str, ...] = ()
    """What a call may begin with: fixed texts."""

    after_name: tuple[str, ...] = ()
    """What may stand right behind the name of an offered tool and makes that the beginning of a call."""

    wrappers: tuple[str, ...] = ()
    """Texts that are dropped where nothing but white space stands between them and a call."""

    control_tokens: tuple[str, ...] = ()
    """Texts that are dropped wherever they stand, unless they are quoted."""

    @abstractmethod
    def read(self, source: Source, start: int, tools: OfferedTools) -> Attempt:
        """Read what begins at an opening: give each call when it is complete, and None wherever more text has to decide.

        Args:
            source: the text; while it has not ended, whoever drives this lets it grow and goes on.
            start: where an opening stands.
            tools: the tools that the model was offered.
        """
