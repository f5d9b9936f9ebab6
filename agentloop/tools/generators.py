"""Generators as tools: each value is progress, and the last one is the result."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from itertools import islice
from typing import Any, get_args, get_origin

from attrs import frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import ToolFailed
from agentloop.tools.conversion import json_of
from agentloop.values.value import Value

_ASYNC_TYPES = frozenset({collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator})
_TYPES = frozenset({collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator})
_NOTHING = object()


@frozen(eq=False, repr=False)
class Yields(Value):
    """What a generator yields and returns.

    Attributes:
        value: the type of its values.
        result: the type of its result: of its last value, or of the value that it returns.
        returns: whether it returns its result.
    """

    value: Any
    result: Any
    returns: bool = False

    @classmethod
    def of(cls, routine: Any, hint: Any) -> Yields | None:
        """Read the return annotation of a generator function; None if it does not say what is yielded."""
        types = _ASYNC_TYPES if inspect.isasyncgenfunction(routine) else _TYPES
        arguments = get_args(hint)
        if get_origin(hint) not in types or not arguments:
            return None
        returned = arguments[2] if len(arguments) > 2 else None  # noqa: PLR2004  # Generator[yielded, sent, returned]
        if returned is None or returned is type(None):
            return cls(arguments[0], arguments[0])
        return cls(arguments[0], returned, returns=True)

    def report(self, value: Any, context: ToolContext | None) -> bool:
        """Emit a value as progress of the call; return whether the next one is of use."""
        if context is None:
            return True
        if not context.is_closed:
            context.progress(json_of(value, self.value))
        return not context.is_closed


def is_generator(routine: Any) -> bool:
    """Whether a function yields its result."""
    return inspect.isgeneratorfunction(routine) or inspect.isasyncgenfunction(routine)


async def last_value(generator: AsyncGenerator[Any, None], yields: Yields, context: ToolContext | None) -> Any:
    """Report the values of an async generator, and return the last one. The generator is closed in any case.

    Raises:
        ToolFailed: there is no value.
        Exception: any error of the generator.
    """
    last: Any = _NOTHING
    async with aclosing(generator):
        async for last in generator:
            if not yields.report(last, context):
                break
    return _result(last)


def last_value_in_thread(generator: Generator[Any, None, Any], yields: Yields, context: ToolContext | None) -> Any:
    """Report the values of a generator, and return its result. The generator is closed in any case.

    A call that was settled meanwhile ends at the next value.

    Raises:
        ToolFailed: there is no value.
        Exception: any error of the generator.
    """
    last: Any = _NOTHING
    with closing(generator):
        while True:
            try:
                last = next(generator)
            except StopIteration as end:
                return end.value if yields.returns else _result(last)
            if not yields.report(last, context):
                return last


def items_of(iterator: Iterator[Any]) -> list[Any]:
    """Return the items of an iterator that a function returned. What the iterator does belongs to the call.

    Raises:
        ToolFailed: there are more than a million.
        Exception: any error of the iterator.
    """
    items = list(islice(iterator, _MAX_ITEMS + 1))
    if len(items) > _MAX_ITEMS:
        raise ToolFailed(f"the tool returned an iterator with more than {_MAX_ITEMS:,} items")
    return items


async def items_of_async(iterator: AsyncIterator[Any]) -> list[Any]:
    """Return the items of an async iterator, as `items_of` does."""
    items = []
    async for item in iterator:
        items.append(item)
        if len(items) > _MAX_ITEMS:
            raise ToolFailed(f"the tool returned an iterator with more than {_MAX_ITEMS:,} items")
    return items


_MAX_ITEMS = 1_000_000


def _result(last: Any) -> Any:
    if last is _NOTHING:
        raise ToolFailed("the tool ended without yielding a value, and so has no result")
    return last
