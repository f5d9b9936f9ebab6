"""The kits of small parts: event buses, stores of objects and functions that return keys of the package keep their laws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentloop.contracts import CanHandleEvents
from agentloop.durable import FolderObjects
from agentloop.events import EventBus
from agentloop.events.bus import JoinedBus, join_buses
from agentloop.models.keys import fetch_key
from agentloop.testing import EventBusKit, KeyFunctionKit, ObjectStoreKit
from tests.generated import examples
from tests.testing.zoo.buses import PlainBus

pytestmark = pytest.mark.unmonitored  # the events of the kits are none of an execution

BUSES: dict[str, Callable[[], CanHandleEvents]] = {
    "plain": EventBus,
    "of an execution": lambda: EventBus().for_execution(),
    "joined": lambda: join_buses(EventBus(), EventBus()),
    "joined, of an execution": lambda: join_buses(EventBus(), EventBus()).for_execution(),
    "joined with a bus of another class": lambda: JoinedBus(EventBus(), PlainBus()),
}


@pytest.mark.parametrize("law", EventBusKit.laws)
@pytest.mark.parametrize("name", BUSES)
def test_event_buses_keep_the_laws(name: str, law: int) -> None:
    """A bus, that of an execution, and joined ones deliver alike."""
    EventBusKit(BUSES[name], examples=examples(10)).check(law)


@pytest.mark.parametrize("law", ObjectStoreKit.laws)
def test_a_folder_of_objects_keeps_the_laws(tmp_path: Path, law: int) -> None:
    """Objects are read as they were written, also by a store that is opened again."""
    numbers = count()

    def create() -> FolderObjects:
        return FolderObjects(tmp_path / str(next(numbers)))

    def reopen(store: Any) -> FolderObjects:
        return FolderObjects(store.path)

    ObjectStoreKit(create, reopen=reopen, examples=examples(5)).check(law)


@pytest.mark.parametrize("law", KeyFunctionKit.laws)
def test_a_key_that_a_model_fetches_keeps_the_laws(law: int) -> None:
    """A model asks for its key late and anew, whatever became of the last call."""
    KeyFunctionKit(lambda fetch: partial(fetch_key, fetch, "model"), examples=examples(10)).check(law)


class Cached:
    """Keeps a key for a time."""

    def __init__(self, fetch: Any) -> None:
        self.fetch, self.key = fetch, ""

    async def __call__(self) -> str:
        self.key = self.key or await self.fetch()
        return self.key


def test_a_function_may_keep_a_key_for_a_time() -> None:
    """The kit is told how that time ends."""

    def expire(function: Any) -> None:
        function.key = ""

    KeyFunctionKit(Cached, expire=expire, examples=examples(10)).check_all()
