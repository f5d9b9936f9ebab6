"""Interleavings of concurrent work: an event loop that decides by a seed which task runs next, and a walk through all orders."""

from __future__ import annotations

import asyncio
from asyncio import Handle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from random import Random
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, cast

from attrs import define, field, frozen

from agentloop.errors import ConfigurationError
from agentloop.testing.clocks import VirtualTimeLoop, virtual_time_runner

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Choose = Callable[[int], int]
"""Returns which of a number of tasks that could run next does so, from 0."""


@frozen
class Interleaving(Generic[T]):
    """One order in which the tasks of a program have run, and what came of it.

    Attributes:
        choices: which task ran next, at each moment at which several could; `run_interleaved` repeats the order from them.
        error: what the program raised; None if it returned.
    """

    choices: tuple[int, ...]
    error: BaseException | None = None
    _value: T | None = field(default=None, repr=False)

    @property
    def value(self) -> T:
        """What the program has returned.

        Raises:
            BaseException: what it has raised.
        """
        if self.error is not None:
            raise self.error
        return cast("T", self._value)


def run_interleaved(coroutine: Coroutine[Any, Any, T], *, seed: int = 0, choices: Sequence[int] = ()) -> T:
    """Run a coroutine in virtual time, with its tasks in an order that a seed decides.

    Args:
        coroutine: the program.
        seed: the seed. The same one gives the same order, as long as the program does the same; tools in threads are not ordered.
        choices: those of an `Interleaving` to repeat; the seed decides what comes after them.

    Raises:
        Exception: whatever the coroutine raises.
    """
    known, random = iter(choices), Random(seed)  # noqa: S311  # not for secrets

    def choose(count: int) -> int:
        return min(next(known, random.randrange(count)), count - 1)

    return _run(coroutine, choose)


def walk_interleavings(
    program: Callable[[], Coroutine[Any, Any, T]], *, limit: int = 100, seed: int = 0
) -> Iterator[Interleaving[T]]:
    """Run a program again and again, each time with its tasks in another order, in virtual time.

        for interleaving in walk_interleavings(lambda: make_loop().execute("go")):
            assert interleaving.value.final_text == "done", interleaving.choices

    No order occurs twice. A program with at most `limit` orders is run in all of them; of another one, the seed selects some.

    Args:
        program: makes the coroutine, with everything that it changes; called for each run.
        limit: the maximum number of runs.
        seed: decides about the sequence of the orders.

    Raises:
        ConfigurationError: the limit is below 1.
    """
    if limit < 1:
        raise ConfigurationError(f"a walk takes one run at least, not {limit}")
    random, root = Random(seed), _Branch()  # noqa: S311  # not for secrets
    for _ in range(limit):
        path = _Path([root], random)
        error, value = None, None
        try:
            value = _run(program(), path.choose)
        except Exception as raised:  # noqa: BLE001  # the caller decides about it
            error = raised
        yield Interleaving(tuple(path.choices), error, value)
        path.finish()
        if root.is_done:
            return


def _run(coroutine: Coroutine[Any, Any, T], choose: Choose) -> T:
    with virtual_time_runner(lambda: InterleavingLoop(choose)) as runner:
        return runner.run(coroutine)


@define
class _Branch:
    """A moment at which several tasks can run next.

    Attributes:
        next: what follows each choice; empty for a choice that was not made yet.
        is_done: whether all orders from here on have been run.
    """

    next: list[_Branch | None] = field(factory=list)
    is_done: bool = False

    def open_choices(self, count: int) -> list[int]:
        """Return the choices among which some order was not run yet; all of them if there is none."""
        self.next += [None] * (count - len(self.next))
        found = [index for index, branch in enumerate(self.next[:count]) if branch is None or not branch.is_done]
        return found or list(range(count))

    def follow(self, choice: int) -> _Branch:
        """Return the moment after a choice."""
        branch = self.next[choice] = self.next[choice] or _Branch()
        return branch


@define
class _Path:
    """The choices of one run.

    Attributes:
        branches: the moments so far; the last one is the present.
        random: selects among the choices.
        choices: the choices so far.
    """

    branches: list[_Branch]
    random: Random
    choices: list[int] = field(factory=list)

    def choose(self, count: int) -> int:
        """Choose a task, so that the run differs from those before."""
        present = self.branches[-1]
        choice = self.random.choice(present.open_choices(count))
        self.choices.append(choice)
        self.branches.append(present.follow(choice))
        return choice

    def finish(self) -> None:
        """Note that this order was run."""
        for branch in reversed(self.branches):
            branch.is_done = all(after is not None and after.is_done for after in branch.next)


class InterleavingLoop(VirtualTimeLoop):
    """An event loop in virtual time that decides which of the tasks that are ready runs next.

    Everything but steps of tasks, such as the callbacks of sockets, keeps its order.

    Args:
        choose: makes the choice.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._steps: list[Handle] = []
        super().__init__()

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> Handle:
        """Call a function in the next iteration; the step of a task may come before others that were scheduled earlier."""
        if not isinstance(getattr(callback, "__self__", None), asyncio.Task):
            return super().call_soon(callback, *args, context=context)
        step = Handle(callback, args, self, context)
        self._steps.append(step)
        super().call_soon(self._run_step)
        return step

    def _run_step(self) -> None:
        self._steps = [step for step in self._steps if not step.cancelled()]
        if self._steps:
            chosen = self._choose(len(self._steps)) if len(self._steps) > 1 else 0
            self._steps.pop(chosen)._run()  # noqa: SLF001  # as the base class runs its handles
