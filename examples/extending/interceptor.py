"""An interceptor of your own: it masks card numbers in the results of tools, before the model and the state get them."""

from __future__ import annotations

import re

from agentloop import Interceptor
from agentloop.interception import AfterToolUse
from agentloop.testing import InterceptorKit, check_laws

CARD = re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b")


class MaskCards(Interceptor):
    """Replaces card numbers in results that are texts."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        value = point.execution.value
        if not isinstance(value, str) or not CARD.search(value):
            return point
        return point.with_value(CARD.sub("****", value))


if __name__ == "__main__":
    print(check_laws(InterceptorKit(MaskCards, examples=10)))
