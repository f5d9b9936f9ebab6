"""Events of answers that could not be used as they came."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event


@frozen(eq=False, repr=False)
class DecisionExtractionFailed(Event):
    """A model's answer could not be read as calls or as an answer.

    Attributes:
        attempt: which answer of the step it was, from 1.
        problem: what is wrong with it, as the model is told.
        text: what the model wrote, as far as it was text.
    """

    attempt: int
    problem: str
    text: str = ""


@frozen(eq=False, repr=False)
class ValidationFailed(Event):
    """A model's answer was read, and cannot be used: a call that cannot be executed, or an answer of another form.

    Attributes:
        attempt: which answer of the step it was, from 1.
        problems: what is wrong with it, as the model is told.
    """

    attempt: int
    problems: tuple[str, ...]
