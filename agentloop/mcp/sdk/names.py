"""The names of the SDK that its two generations have in different places, or that only the second one has; of the client's side.

This folder is written for generation 2 of the SDK, which is `mcp` 2.3 and newer. Other packages require generation 1, which is
`mcp` 1.30: for that one, `first_generation` has the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mcp

IS_FIRST_GENERATION: Final = not hasattr(mcp, "MCPError")

if TYPE_CHECKING or not IS_FIRST_GENERATION:
    import httpx2
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.client.subscriptions import ListenNotSupportedError
    from mcp.shared.dispatcher import ProgressFnT

    from agentloop.mcp.sdk.tasks import TaskExtension, TaskFailed

    def read_message(data: bytes) -> types.JSONRPCMessage:
        """Parse a message.

        Raises:
            ValueError: the data is not a message.
        """
        return types.jsonrpc_message_adapter.validate_json(data, by_name=False)

    def as_message(content: types.JSONRPCError) -> types.JSONRPCMessage:
        """Return a message with this content."""
        return content

    def content_of(message: types.JSONRPCMessage) -> object:
        """Return the content of a message, which is the message itself in generation 2."""
        return message

    def structured_content(result: types.CallToolResult) -> object:
        """Return the structured content of a result; None when it has none."""
        return result.structured_content

else:
    import httpx as httpx2
    from mcp import types
    from mcp.shared.session import ProgressFnT

    from agentloop.mcp.sdk.first_generation.client import (
        AuthorizationCodeResult,
        Client,
        ListenNotSupportedError,
        MCPError,
        OAuthClientProvider,
        ReadStream,
        TaskExtension,
        TaskFailed,
        TransportStreams,
        as_message,
        content_of,
        read_message,
        structured_content,
    )

__all__ = [
    "IS_FIRST_GENERATION",
    "AuthorizationCodeResult",
    "Client",
    "ListenNotSupportedError",
    "MCPError",
    "OAuthClientProvider",
    "ProgressFnT",
    "ReadStream",
    "TaskExtension",
    "TaskFailed",
    "TransportStreams",
    "as_message",
    "content_of",
    "httpx2",
    "read_message",
    "structured_content",
    "types",
]
