"""A limit on money."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import gt

from agentloop.interception.budget import Budget


@frozen(repr=False)
class CostLimit(Budget):
    """Stops an execution instead of making an inference that may cost more than is left of this many dollars.

    Prices are those that providers publish, unless `prices` says others; what is not known is estimated, unless `unknown`
    says otherwise.

    Attributes:
        cost: the most dollars of one execution.
    """

    cost: float = field(validator=gt(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False
