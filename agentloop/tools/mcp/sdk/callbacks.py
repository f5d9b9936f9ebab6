"""What servers ask of us, answered by functions of the program."""

from __future__ import annotations

import logging
from typing import Any

from mcp.client.session import ElicitationFnT, LoggingFnT, SamplingFnT
from mcp_types import (
    INTERNAL_ERROR,
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
        try:
            content = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if content is None:
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content=dict(content))
        except Exception:  # noqa: BLE001  # whatever the program's function raises, the server is told and the call goes on
            return _failed("on_elicitation")

    return answer


def sampling(reply: Reply | None) -> SamplingFnT | None:
    """Return what answers questions to a model; None to say that nobody does."""
    if reply is None:
        return None

    async def answer(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult | ErrorData:  # noqa: ARG001  # the SDK's signature
        try:
            message = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if message is None:
                return ErrorData(code=INVALID_REQUEST, message="the request was declined")
            return CreateMessageResult.model_validate(dict(message))
        except Exception:  # noqa: BLE001  # whatever the program's function raises, the server is told and the call goes on
            return _failed("on_sampling")

    return answer


def _failed(function: str) -> ErrorData:
    """Log what was raised, which is not for the server, and return what it is told."""
    _LOG.exception("%s has failed; the server is told that there is no answer", function)
    return ErrorData(code=INTERNAL_ERROR, message=f"the request could not be answered: {function} has failed")


def logged(name: str) -> LoggingFnT:
    """Return what writes a server's messages to the log."""

    async def log(params: LoggingMessageNotificationParams) -> None:
        _LOG.info("%s: %s: %s", name, params.level, str(params.data)[:_LONGEST_LOGGED])

    return log
