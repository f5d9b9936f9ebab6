"""What servers ask of us, answered by functions of the program."""

from __future__ import annotations

import logging
from typing import Any

from mcp.client.session import ElicitationFnT, LoggingFnT, SamplingFnT
from mcp_types import (
    INVALID_REQUEST,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    LoggingMessageNotificationParams,
)

from agentloop.tools.mcp.offers import Reply

_LOG = logging.getLogger("agentloop.tools.mcp.server")
_LONGEST_LOGGED = 2_000


def elicitation(reply: Reply | None) -> ElicitationFnT | None:
    """Return what answers questions to the user; None to say that nobody does."""
    if reply is None:
        return None

    async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:  # noqa: ARG001  # the SDK's signature
        content = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        return (
            ElicitResult(action="decline") if content is None else ElicitResult(action="accept", content=dict(content))
        )

    return answer


def sampling(reply: Reply | None) -> SamplingFnT | None:
    """Return what answers questions to a model; None to say that nobody does."""
    if reply is None:
        return None

    async def answer(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult | ErrorData:  # noqa: ARG001  # the SDK's signature
        message = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        if message is None:
            return ErrorData(code=INVALID_REQUEST, message="the request was declined")
        return CreateMessageResult.model_validate(dict(message))

    return answer


def logged(name: str) -> LoggingFnT:
    """Return what writes a server's messages to the log."""

    async def log(params: LoggingMessageNotificationParams) -> None:
        _LOG.info("%s: %s: %s", name, params.level, str(params.data)[:_LONGEST_LOGGED])

    return log
