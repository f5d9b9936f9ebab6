"""A listener that keeps the events of a run, and finds them by class and by what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from agentloop.errors import AgentLoopError
from agentloop.values.event import Event

E = TypeVar("E", bound=Event)

_MISSING = object()
_MAX_SHOWN = 160


@frozen(init=False)
class EventMatch(Generic[E]):
    """What an event has to be like: its class, and conditions about its attributes.

        EventMatch(ToolCallCompleted, execution__call__name="pay", execution__value=lambda value: value > 100)

    Args:
        kind: the class; events of its subclasses match too.
        **conditions: by the name of an attribute, the value that it has to have, or a function of the value that says whether it
            matches. Two underscores lead into an attribute of an attribute.
    """

    kind: type[E]
    conditions: Mapping[str, object] = field()

    def __init__(self, kind: type[E], **conditions: object) -> None:
        self.__attrs_init__(kind, conditions)

    def matches(self, event: Event) -> bool:
        """Return whether an event is like this."""
        return isinstance(event, self.kind) and all(
            _holds(condition, _attribute(event, path)) for path, condition in self.conditions.items()
        )

    def __str__(self) -> str:
        conditions = [f"{path}={_shown(condition)}" for path, condition in self.conditions.items()]
        return f"{self.kind.__name__}({', '.join(conditions)})"


class EventRecorder:
    """A listener that keeps all events.

        recorder = EventRecorder()
        loop.wiretap(recorder)
        loop.run_sync("Pay.")
        recorder.only(ToolCallCompleted, execution__call__name="pay")
        recorder.assert_order(AgentStepStarted, ToolCallStarted, AgentExecutionCompleted)

    Attributes:
        events: the events so far, in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __repr__(self) -> str:
        return f"EventRecorder({len(self.events)} events)"

    @property
    def names(self) -> list[str]:
        """The names of the classes of the events, in order."""
        return [type(event).__name__ for event in self.events]

    def clear(self) -> None:
        """Forget the events so far."""
        self.events.clear()

    def all(self, kind: type[E], **conditions: object) -> list[E]:
        """Return the events of a class that match conditions, as those of an `EventMatch`."""
        match = EventMatch(kind, **conditions)
        return [event for event in self.events if isinstance(event, kind) and match.matches(event)]

    def only(self, kind: type[E], **conditions: object) -> E:
        """Return the one event of a class that matches conditions.

        Raises:
            AssertionError: there is none, or more than one; shows the events.
        """
        found = self.all(kind, **conditions)
        if len(found) != 1:
            raise AssertionError(
                f"{len(found)} events, not one, match {EventMatch(kind, **conditions)}\n{self._listed()}"
            )
        return found[0]

    def assert_none(self, kind: type[Event], **conditions: object) -> None:
        """Check that no event of a class matches conditions.

        Raises:
            AssertionError: there are some; shows the events.
        """
        found = self.all(kind, **conditions)
        if found:
            raise AssertionError(f"{len(found)} events match {EventMatch(kind, **conditions)}\n{self._listed()}")

    def assert_order(self, *expected: type[Event] | EventMatch[Any]) -> None:
        """Check that events occurred one after the other; others may have occurred in between.

        Raises:
            AssertionError: one did not occur behind those before it; shows the events.
        """
        remaining = iter(self.events)
        for number, each in enumerate(expected, 1):
            match = each if isinstance(each, EventMatch) else EventMatch(each)
            if not any(match.matches(event) for event in remaining):
                raise AssertionError(f"event {number} of the order did not follow: {match}\n{self._listed()}")

    def _listed(self) -> str:
        return "\n".join(["the events:", *[f"  {_shown(event)}" for event in self.events]])


def _attribute(event: object, path: str) -> object:
    value = event
    for name in path.split("__"):
        try:
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else getattr(value, name, _MISSING)
        except AgentLoopError:  # such as the arguments of a call that are no JSON
            return _MISSING
        if value is _MISSING:
            return value
    return value


def _holds(condition: object, value: object) -> bool:
    if value is _MISSING:
        return False
    test: Callable[[object], object] | None = condition if callable(condition) and condition is not value else None
    return bool(condition == value if test is None else test(value))


def _shown(value: object) -> str:
    name = getattr(value, "__name__", "") if callable(value) else ""
    text = name or repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
