"""The model of the kit of inferences: it answers by the request alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.errors import ProviderUnavailable
from agentloop.testing.clocks import CountingIds, LoopClock
from agentloop.testing.samples import digest_of
from agentloop.testing.scenario import Scenario
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, Usage, iter_deltas
from agentloop.values.messages import Message
from agentloop.values.parts import Text

FAILING = -1
"""The turn of a request that fails."""
_TURN = re.compile(r"\bturn (-?\d+)\b")


class AnsweringModel(CanInfer):
    """The model behind the inference under test: its answer follows from the request alone.

    A request that the inference makes of one of the kit, such as to improve an answer to it, is answered by the same turn.

    Args:
        scenario: its answers.

    Attributes:
        requests: what it was asked.
        usages: the tokens of each of its responses.
        answered: the requests that it answered, in order.
        answers: for a turn, what it answers in place of that of the scenario.
        tells_request: whether its answers say which request they are to.
        failures: how many of the next requests fail.
        breaks: how many of the next streams fail after their first delta.
        delay: the seconds before each delta and before the answer.
        resources: what an inference that is bound to an execution opens for it.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.requests: list[InferenceRequest] = []
        self.usages: list[Usage] = []
        self.answered: list[InferenceRequest] = []
        self.answers: dict[int, InferenceResponse] = {}
        self.tells_request = False
        self.failures: int = 0
        self.breaks: int = 0
        self.delay: float = 0.0
        self.resources: Resources = Resources()

    def scope(self) -> ExecutionScope:
        """Return the scope of a new execution."""
        opened = self.resources
        return ExecutionScope(
            clock=LoopClock(),
            ids=CountingIds(),
            local_resources=opened,
            shared_resources=opened,
            kept_resources=opened,
        )

    def request(self, turn: int) -> InferenceRequest:
        """Return a request that is answered by a turn, 0-based; that of -1 fails."""
        tools = collect_tools(toy_tools(Ledger()))
        return InferenceRequest((Message.user(f"turn {turn}"),), "Play.", tools.specs)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer the request.

        Raises:
            ProviderUnavailable: the request asks for that.
        """
        self.requests.append(request)
        await asyncio.sleep(self.delay)
        turn = _turn_of(request)
        if turn == FAILING or self.failures > 0:
            self.failures -= turn != FAILING
            raise ProviderUnavailable("the model of the kit fails as it was asked to")
        response = self.answers.get(turn) or self._scenario.turns[turn].response(turn)
        if self.tells_request:
            response = response.with_parts([*response.parts, Text(f"This is about request {digest_of(request)}.")])
        self.usages.append(response.usage)
        self.answered.append(request)
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Stream the answer.

        Raises:
            ProviderUnavailable: the request asks for that.
        """
        response = await self.infer(request)
        is_broken, self.breaks = self.breaks > 0, max(self.breaks - 1, 0)
        for delta in iter_deltas(response):
            await asyncio.sleep(self.delay)
            yield delta
            if is_broken:
                raise ProviderUnavailable("the stream of the model breaks off as it was asked to")
        yield response


def _turn_of(request: InferenceRequest) -> int:
    """Return the turn that a request asks for, whatever an inference has put around the message that says so."""
    text = " ".join([message.text for message in request.messages if message.role == "user"])
    return int(_TURN.findall(text)[-1])
