"""Another time of day, for checks of what must not depend on the clock of the system."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime
from typing import Any
from unittest.mock import patch

_SECONDS = 400.3 * 86_400


class _Dates(type):
    """Lets every date be an instance of the classes that stand for those of the interpreter."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime if issubclass(cls, datetime) else date)


class _LaterDatetime(datetime, metaclass=_Dates):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        """Return the time that it will be."""
        return datetime.now(tz) + dt.timedelta(seconds=_SECONDS)

    @classmethod
    def today(cls) -> Any:
        """Return the local time that it will be."""
        return cls.now()

    @classmethod
    def utcnow(cls) -> Any:
        """Return the time that it will be."""
        return cls.now(dt.UTC).replace(tzinfo=None)


class _LaterDate(date, metaclass=_Dates):
    @classmethod
    def today(cls) -> Any:
        """Return the date that it will be."""
        return _LaterDatetime.now().date()


def _later(read: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seconds=None: read(time.time() if seconds is None else seconds)


@contextmanager
def another_time(*objects: object) -> Iterator[None]:
    """Let the clock of the system be more than a year ahead, for the modules of the classes of these objects.

    Args:
        *objects: what is used meanwhile. Their modules may have imported functions and classes of `time` and `datetime` by name.
    """
    real = {name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime", "strftime", "ctime")}
    others: dict[str, Any] = {
        "time": lambda: real["time"]() + _SECONDS,
        "time_ns": lambda: real["time_ns"]() + int(_SECONDS) * 10**9,
        "localtime": _later(real["localtime"]),
        "gmtime": _later(real["gmtime"]),
        "ctime": _later(real["ctime"]),
        "strftime": lambda form, at=None: real["strftime"](form, time.localtime() if at is None else at),
    }
    names = {each.__module__ for shown in objects for each in type(shown).__mro__ if each is not object}
    replaced = {id(real[name]): others[name] for name in real} | {id(datetime): _LaterDatetime, id(date): _LaterDate}
    with ExitStack() as stack:
        for name, other in others.items():
            stack.enter_context(patch.object(time, name, other))
        stack.enter_context(patch.object(dt, "datetime", _LaterDatetime))
        stack.enter_context(patch.object(dt, "date", _LaterDate))
        for module in [sys.modules[name] for name in names if name in sys.modules]:
            for name, value in list(vars(module).items()):
                if module not in {time, dt} and id(value) in replaced:
                    stack.enter_context(patch.object(module, name, replaced[id(value)]))
        yield
