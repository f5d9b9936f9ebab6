"""Secrets that the parts of an agent hold are masked where texts leave the process."""

from __future__ import annotations

import io
import json
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanInfer
from agentloop.contracts.can_journal import CanRedactRecords
from agentloop.contracts.tools import Tools
from agentloop.durable import Journal, MemoryJournal, open_journal
from agentloop.durable.exits import Exit, secrets_of
from agentloop.errors import ToolFailed
from agentloop.mcp import ClientCredentials, McpEnsemble
from agentloop.models.config import LLMConfig
from agentloop.models.http_inference import HttpInference
from agentloop.models.keys import fetch_key
from agentloop.service.cli.mcp import open_agent, open_tools
from agentloop.service.cli.serve import _executions
from agentloop.service.telemetry import JsonFormatter, LogRedaction
from agentloop.values import InferenceRequest, InferenceResponse
from agentloop.values.json import thaw
from agentloop.values.secrets import Secret

KEY = "sk-live-0123456789abcdef"


def _model(key: Any = KEY) -> HttpInference:
    return HttpInference(LLMConfig.parse("openai:gpt-5", api_key=key, base_url="http://127.0.0.1:9/v1"))


class Wrapper(CanInfer):
    """An inference of a program around another one."""

    def __init__(self, inner: CanInfer) -> None:
        self.inner = inner

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await self.inner.infer(request)


def _closing_over(key: str) -> Any:
    secret = Secret(key)

    @tool(effect="pure")
    def ask() -> str:
        """Ask a service."""
        return secret.reveal()

    return ask


def test_the_secrets_of_an_agent_are_found_wherever_its_parts_hold_them() -> None:
    """Keys of models, of wrapped models, of agents that are tools, headers, secrets of MCP servers and of functions."""
    jobs = McpEnsemble.http(
        "https://jobs.example.com/mcp", auth=ClientCredentials("p", "client-1234", issuer="https://l.example.com")
    )
    inner = AgentLoop.for_model(Wrapper(_model("inner-key-1234")), tools=[_closing_over("closed-over-1234")])
    config = LLMConfig.parse("openai:gpt-5", api_key=KEY, headers={"x-api-key": "header-1234"})
    loop = AgentLoop.for_model(
        HttpInference(config), tools=[jobs, inner.as_tool("ask", "Ask.")], journal=MemoryJournal()
    )
    found = {secret.reveal() for secret in secrets_of(loop)}
    assert found == {KEY, "header-1234", "client-1234", "inner-key-1234", "closed-over-1234"}


def test_placeholders_for_local_servers_are_no_secrets() -> None:
    """A key such as `-` would be masked everywhere."""
    assert secrets_of(AgentLoop.for_model(_model("-"))) == ()


async def test_the_keys_that_a_function_returns_are_masked_when_they_are_known() -> None:
    """An exit that was made before masks the key of the first request, and that which follows it."""
    keys = ["first-key-1234", "second-key-1234"]

    def key() -> str:
        return keys[0]

    way_out = AgentLoop.for_model(_model(key)).redaction
    assert way_out.redact({"text": keys[0]}) == {"text": keys[0]}
    for known in tuple(keys):
        await fetch_key(key, "gpt-5")
        assert way_out.redact({"text": f"is {known}"}) == {"text": "is ***"}
        keys.pop(0)


class _Redactor(CanRedactRecords):
    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(body).replace("hunter2", "***"))  # type: ignore[no-any-return]  # an object


def test_an_exit_of_an_unknown_redaction_shows_a_text_at_its_end() -> None:
    """Nobody knows which beginnings of texts it would mask."""
    mask = Exit.of(_Redactor(), []).mask_pieces()
    assert mask is not None
    assert mask.add("so hun") + mask.add("ter2") == ""
    assert mask.end() == "so ***"


@pytest.mark.parametrize("is_known", [True, False])
async def test_serve_opens_its_journal_with_the_keys_of_the_models(tmp_path: Path, *, is_known: bool) -> None:
    """What a tool repeats of a key is masked in the file."""
    agents = {"default": AgentLoop.for_model(_model() if is_known else ScriptedInference())}
    async with AsyncExitStack() as stack:
        executions = await _executions(agents, str(tmp_path / "runs.db"), stack, in_cluster=False)
        assert isinstance(executions.journal, Journal)
        assert executions.journal.masks_secrets == is_known


@tool(effect="pure")
def leak(fails: bool = False) -> dict[str, str]:  # noqa: FBT001, FBT002  # the argument of a tool
    """Repeat the key."""
    if fails:
        raise ToolFailed(f"401 for Bearer {KEY}")
    return {"found": f"it is {KEY}"}


async def test_what_is_served_over_mcp_has_no_secret() -> None:
    """Results, errors and answers that go to a client are masked."""
    model = ScriptedInference(ToolCall("1", "leak", "{}"), f"The key is {KEY}.")
    loop = AgentLoop.for_model(model, tools=[leak, _closing_over(KEY)])
    async with open_agent(loop, "agent", "An agent.") as served:
        result = await served.call({"task": "Go."}, lambda _: None)
    assert result.value == "The key is ***."
    holder = _closing_over(KEY)
    async with open_tools(Tools.of([leak, holder])) as tools:
        by_name = {each.name: each for each in tools}
        result = await by_name["leak"].call({}, lambda _: None)
        assert thaw(result.value) == {"found": "it is ***"}
        with pytest.raises(ToolFailed, match=r"401 for Bearer \*\*\*") as caught:
            await by_name["leak"].call({"fails": True}, lambda _: None)
        assert caught.value.__cause__ is None


async def test_log_records_have_no_secret() -> None:
    """Messages, tracebacks and additions of records are masked, in any format."""
    logger, texts = logging.getLogger("tests.exits"), []
    for formatter in (logging.Formatter("%(message)s %(extra)s"), JsonFormatter()):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        handler.addFilter(LogRedaction(AgentLoop.for_model(_model()).redaction))
        logger.addHandler(handler)
        try:
            int(f"401 for {KEY}")
        except ValueError:
            logger.exception("the tool failed with %s", KEY, extra={"extra": {"headers": [KEY]}})
        logger.warning("nothing secret", extra={"extra": 5})
        logger.removeHandler(handler)
        texts.append(stream.getvalue())
    for text in texts:
        assert KEY not in text
        assert "the tool failed with ***" in text
        assert "base 10: '401 for ***'" in text
        assert "Traceback" in text
        assert "nothing secret" in text
    assert json.loads(texts[1].splitlines()[1])["extra"] == 5


async def test_an_exit_without_secrets_changes_nothing() -> None:
    """The same objects come out."""
    way_out = Exit.of(MemoryJournal(), [AgentLoop.for_model(ScriptedInference())])
    document = {"text": [f"{KEY}"]}
    assert way_out.is_open
    assert way_out.mask_document(document) is document
    assert way_out.redact(document) is document
    assert way_out.mask_pieces() is None


async def test_a_journal_of_a_program_is_masked_where_it_leaves(tmp_path: Path) -> None:
    """What was recorded before a secret was declared is masked by an exit that knows the secret."""
    async with AsyncExitStack() as stack:
        journal = open_journal(str(tmp_path / "runs.db"))
        stack.push_async_callback(journal.aclose)
        loop = AgentLoop.for_model(ScriptedInference(f"The key is {KEY}."), journal=journal)
        await loop.execute("Go.", execution_id="e")
        bodies = [record.body for record in await journal.read("e")]
        assert KEY in "".join(bodies)
        assert KEY not in "".join(Exit.of(journal, [_model()]).mask_document(bodies))
