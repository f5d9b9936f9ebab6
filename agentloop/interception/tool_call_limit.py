"""A limit on tool calls."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.budget import Budget


@frozen(repr=False)
class ToolCallLimit(Budget):
    """Stops an execution in which a model makes more than this many tool calls; the calls too many do not run.

    Every call that the model makes counts, whatever comes of it. A batch that goes over the limit runs up to it.

    Attributes:
        tool_calls: the most calls of one execution.
    """

    tool_calls: int = field(validator=ge(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False
