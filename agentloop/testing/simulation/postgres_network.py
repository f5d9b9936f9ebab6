"""The connections of a machine to a simulated PostgreSQL server, which take time, break, and lose what was on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from typing import Protocol, TypeVar

from attrs import define, field

from agentloop.durable.postgres.connections import (
    DatabaseConnection,
    DatabaseConnector,
    Row,
    StatementFailed,
    Values,
)
from agentloop.testing.simulation.postgres_server import Backend, Blocked, SimulatedPostgres
from agentloop.testing.simulation.postgres_statements import place_of

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
"""How often a connection that is cut looks whether it is mended."""


class PostgresNetwork(Protocol):
    """What lies between a machine and its server."""

    @property
    def is_cut(self) -> bool:
        """Whether nothing gets through now."""

    def at(self, place: str) -> AbstractContextManager[None]:
        """Note that the machine is at a place."""

    async def delay(self, place: str) -> None:
        """Take the time of one way."""

    def refuses(self, place: str) -> bool:
        """Return whether a request is to be lost on its way."""

    def drops(self, place: str) -> bool:
        """Return whether an answer is to be lost on its way."""

    def undoes(self, place: str) -> bool:
        """Return whether the server is to undo the transaction because of a concurrent one."""

    def note(self, place: str) -> None:
        """Note that the server does what a statement says."""

    def start_at_server(self, run: Callable[[], T]) -> T:
        """Call a function whose tasks go on whatever becomes of the machine."""


@define(eq=False)
class SimulatedConnector(DatabaseConnector):
    """Opens connections to a simulated server.

    Attributes:
        server: the server.
        network: the way to it; None for connections that nothing happens to.
        seconds: how long a statement may take.
    """

    server: SimulatedPostgres
    network: PostgresNetwork | None
    seconds: float

    @property
    def name(self) -> str:
        """Host and database, for people."""
        return "simulated/journal"

    @property
    def timeout(self) -> float:
        """How long a statement may take, in seconds."""
        return self.seconds

    async def connect(self) -> DatabaseConnection:
        """Open a connection."""
        network = self.network
        if network is None:
            return SimulatedConnection(self.server.open(), None, self.seconds)
        place = "journal.connect"
        with network.at(place):
            await network.delay(place)
            await get_through(network, _CONNECT_SECONDS)
            if network.refuses(place):
                raise StatementFailed("the connection is refused", "")
            backend = self.server.open(network, transaction_seconds=self.seconds)
            return SimulatedConnection(backend, network, self.seconds)


async def get_through(network: PostgresNetwork, seconds: float) -> None:
    """Wait until the network is mended, as what is sent is sent again.

    Raises:
        StatementFailed: it takes too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while network.is_cut:
        if loop.time() >= deadline:
            raise StatementFailed("timeout expired", "")
        await asyncio.sleep(_LOOK_SECONDS)


@define(eq=False)
class SimulatedConnection(DatabaseConnection):
    """A connection to a simulated server, as its client sees it."""

    _backend: Backend
    _network: PostgresNetwork | None
    _seconds: float
    _is_broken: bool = False
    _handlers: list[Callable[[str], None]] = field(factory=list)

    async def rows(self, statement: str, values: Values | None = None) -> list[Row]:
        """Run a statement and return its rows."""
        if self._is_broken:
            raise StatementFailed("the connection is closed", "")
        network = self._network
        if network is None:
            return await self._ask(statement, values or {})
        place = place_of(statement)
        # Until it has ended in good order: one that is cancelled does not know what became of its statement.
        self._is_broken = True
        with network.at(place):
            await network.delay(place)
            await get_through(network, self._seconds + _GRACE_SECONDS)
            if network.refuses(place):
                self._backend.end()
                raise StatementFailed("the connection is lost", "")
            try:
                if place != "journal.session" and network.undoes(place):
                    self._backend.fail("could not serialize access due to concurrent update", "40001")
                network.note(place)
                rows = await self._ask(statement, values or {})
            except StatementFailed as failure:
                self._is_broken = not self._backend.is_live
                raise StatementFailed(str(failure), "" if failure.state == "57P01" else failure.state) from None
            await network.delay(place)
            await get_through(network, self._seconds + _GRACE_SECONDS)
            if network.drops(place):
                self._backend.end()
                raise StatementFailed("the connection was lost before the answer came", "")
        self._is_broken = False
        self._take_messages()
        return rows

    async def _ask(self, statement: str, values: Values) -> list[Row]:
        backend, network = self._backend, self._network
        try:
            return backend.run_now(statement, values)
        except Blocked:
            # The server goes on with it, whatever becomes of the machine.
            waiting = backend.run(statement, values, lock_seconds=self._seconds)
            loop = asyncio.get_running_loop()
            if network is None:
                return await waiting
            return await asyncio.shield(network.start_at_server(lambda: loop.create_task(waiting)))

    def _take_messages(self) -> None:
        messages, self._backend.outbox[:] = list(self._backend.outbox), []
        for message in messages:
            for handle in self._handlers:
                handle(message)

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor broken, as far as is known."""
        return not self._is_broken

    @contextmanager
    def calling(self, hear: Callable[[], object]) -> Iterator[None]:
        """Call a function whenever the server has sent something."""
        loop, context, backend = asyncio.get_running_loop(), copy_context(), self._backend

        def hear_later() -> None:
            if backend.hear is hear_later:
                loop.call_later(0, hear, context=context)

        backend.hear = hear_later
        if backend.outbox or backend.has_told:
            hear_later()
        try:
            yield
        finally:
            backend.hear = None

    def on_notification(self, handle: Callable[[str], None]) -> None:
        """Call a function with the payload of each notification."""
        self._handlers.append(handle)

    async def close(self) -> None:
        """Close the connection; the server hears of it if the network is not cut."""
        self._is_broken = True
        if self._network is None or not self._network.is_cut:
            self._backend.end()
