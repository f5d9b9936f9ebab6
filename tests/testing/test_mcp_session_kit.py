"""Sessions with MCP servers, those of the package and those that people wrap, keep their laws."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from agentloop.mcp.sdk.session import open_session
from agentloop.mcp.session import ServerSession
from agentloop.testing import LawNotChecked, McpSessionKit
from agentloop.testing.kit_choice import kit_of
from tests.testing.lawful_sessions import LAWFUL_SESSIONS, Opens, opening

SESSIONS: dict[str, Opens] = {"sdk": open_session, **{wrap.__name__: opening(wrap) for wrap in LAWFUL_SESSIONS}}


@pytest.mark.parametrize("law", McpSessionKit.laws)
@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_keep_the_laws(name: str, law: int) -> None:
    """They do over a real process, whose notes tell what it has received."""
    McpSessionKit(SESSIONS[name], examples=2).check(law)


def test_what_opens_a_session_is_named_as_that() -> None:
    """A function implements no contract, so that `--agentloop-kit-as` says what it is."""
    assert isinstance(kit_of("agentloop.mcp.sdk.session:open_session", "mcp"), McpSessionKit)


def test_a_session_that_cannot_be_opened_keeps_no_law() -> None:
    """Nothing is checked where no call is answered."""

    def opens(*_: Any) -> AbstractAsyncContextManager[ServerSession]:
        raise OSError("no server")

    with pytest.raises(LawNotChecked, match="no server"):
        McpSessionKit(opens, examples=1).check(9)
