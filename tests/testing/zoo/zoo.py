"""What a member of the zoo is: a broken implementation, the law that it breaks, and what else fails because of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from attrs import frozen

from agentloop.testing import LawNotChecked, LawViolation
from agentloop.testing.kit import Kit

OWN_EXAMPLES = 25
"""With how many examples a member is found to break its law."""
CONSEQUENCES = Path(__file__).with_name("consequences.json")
"""For each member, the other laws of its kit that fail; `make laws` compares it with what fails."""


@cache
def consequences() -> dict[str, list[int]]:
    """Return the other laws that fail, by the id of the member."""
    listed: dict[str, list[int]] = json.loads(CONSEQUENCES.read_text())
    return listed


@frozen
class Member:
    """A broken implementation.

    Attributes:
        subject: its class or function.
        law: the law that it breaks.
        make: makes the kit that checks it, with this number of examples.
        works: whether it works at all; otherwise the kit checks none of its laws, and says why.
    """

    subject: Any
    law: int
    make: Callable[[int], Kit]
    works: bool = True

    @property
    def name(self) -> str:
        """The name of the class or of the function."""
        return str(getattr(self.subject, "__name__", "") or self.subject.name)

    @property
    def kit(self) -> str:
        """The name of the class of the kit."""
        kit = type(self.make(1))
        # A kit of the zoo itself, which prepares something, is named after the one that users get.
        return next(each.__name__ for each in kit.__mro__ if each.__module__.startswith("agentloop."))

    @property
    def id(self) -> str:
        """Kit, law and name."""
        return f"{self.kit}-{self.law}-{self.name}"

    @property
    def also(self) -> tuple[int, ...]:
        """The other laws of the kit that fail as a consequence."""
        return tuple(consequences().get(self.id, ()))

    def violation_of(self, law: int, examples: int) -> LawViolation | LawNotChecked | None:
        """Check a law; return the violation, or why it was not checked, or None if the law holds."""
        kit = self.make(examples)
        kit.shrinks = False
        try:
            kit.check(law)
        except (LawViolation, LawNotChecked) as violation:
            return violation
        return None

    def broken_laws(self, examples: int) -> tuple[int, ...]:
        """Return the laws of the kit that do not hold, with this number of examples; with more for its own law."""
        numbers = {law: OWN_EXAMPLES if law == self.law else examples for law in self.make(1).laws}
        return tuple([law for law, number in numbers.items() if self.violation_of(law, number) is not None])
