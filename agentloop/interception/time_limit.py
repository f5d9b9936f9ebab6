"""A limit on time."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import gt

from agentloop.interception.budget import Budget


@frozen(repr=False)
class TimeLimit(Budget):
    """Stops an execution that has lasted this long, also in the middle of an inference or of a tool call.

    An inference that is cut off is not in the state; calls that are cut off end as timed out, and their siblings are
    kept.

    Attributes:
        seconds: the most seconds of one execution, from its beginning.
    """

    seconds: float = field(validator=gt(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False
