"""`agentloop demo`: an agent repairs a service, with a scripted model and without a network."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any, Literal, TypeAlias

import click
from attrs import define, evolve, field, frozen
from rich.console import Console
from rich.text import Text

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import ToolContext
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.events.execution import AgentExecutionSuspended
from agentloop.events.inference import InferenceResponseReceived
from agentloop.events.tool_calls import ToolCallCompleted
from agentloop.interception.rules import RequireApproval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.config import LLMConfig
from agentloop.models.http_client import in_process_client
from agentloop.models.http_inference import HttpInference
from agentloop.service.cli.console import (
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    format_pending_call,
    summarize,
)
from agentloop.service.cli.errors import as_usage_errors
from agentloop.service.cli.execution import Decider, TerminalApprover, can_prompt, run_to_end
from agentloop.service.cli.journals import as_journal_errors, check_not_empty, journal_argument, open_journal
from agentloop.service.cli.progress import Progress, no_live_option
from agentloop.tools.decorator import tool
from agentloop.values.capabilities import Capabilities, CapabilityRow
from agentloop.values.decisions import Decision, PendingCall, approve
from agentloop.values.event import Event
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import RandomIds

QUESTION = "Customers cannot pay. Find out which service is at fault, and repair it."
SYSTEM_PROMPT = (
    "You operate the services of a small web shop. Check before you change anything, and check again afterwards."
)
MODEL_NAME = "scripted-operator"
CAPABILITIES = (
    CapabilityRow("scripted:*", Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")),
)

_INTRODUCTION = (
    "An agent operates the services of a web shop. Its model is scripted: it needs no API key and no network, and its token counts "
    "are estimates. Everything else is real: the requests and responses in OpenAI's wire format, the loop, the tools and the approval."
)
_NEXT_STEPS: Mapping[str, str] = {
    "Run it as a command, or talk with it:": "run --model demo",
    "": "chat --model demo",
    "List the providers, and the keys that they need, for a model of your own:": "models",
}
"""The commands with which to go on, by what they are for; each works as it stands."""


@click.command()
@click.option("--yes", "-y", "approve_all", is_flag=True, help="Approve the call that needs approval without asking.")
@click.option(
    "--journal",
    "--db",
    "journal_file",
    type=click.Path(),
    metavar="FILE|URL",
    help="Record the run in this SQLite file, which is created if needed, or in this PostgreSQL database: `agentloop trace view` "
    "and `agentloop runs` show it.",
)
@no_live_option
@click.pass_context
def demo(context: click.Context, *, approve_all: bool, journal_file: str | None, no_live: bool) -> None:
    """Watch an agent at work, without an API key and without a network.

    Example: `agentloop demo --yes`.

    The agent finds out which service of a web shop is down, and repairs it: it makes three calls in parallel, one of which
    fails, corrects itself, and asks for approval before it changes anything. The model is scripted; the loop, the tools and
    the messages on the wire are real.

    Without a terminal to ask on, the call is approved as with --yes. Nothing is recorded without --journal.
    """
    check_not_empty(journal_file)
    out = create_console()
    loop = AgentLoop(
        ToolCallingDriver(scripted_inference(), models=CAPABILITIES),
        TOOLS,
        system_prompt=SYSTEM_PROMPT,
        interceptors=[RequireApproval(reason="it interrupts a running service")],
        max_steps=10,
    )
    with as_usage_errors(), as_journal_errors():
        if journal_file is not None:
            loop = loop.replace(journal=open_journal(journal_file, ()))
        state = _show_run(out, loop, _approver(out, approve_all=approve_all), is_live=not no_live)
    _print_heading(out, "Answer")
    out.print(as_printable(state.final_text or "") or describe_problem(state), soft_wrap=True)
    _print_heading(out, "Account of the run")
    out.print(as_printable(state.explain()), soft_wrap=True)
    out.print(summarize(state))
    _print_next_steps(out, state, journal_file)
    context.exit(exit_code_of(state))


def _show_run(out: Console, loop: AgentLoop, decide: Decider, *, is_live: bool) -> AgentState:
    """Run the loop to its end and print what happens."""
    _print_heading(out, "agentloop demo")
    out.print(_INTRODUCTION)
    _print_heading(out, "Question")
    out.print(QUESTION)
    _print_heading(out, "Progress")
    # The captions come after the progress, so that each follows the line that it explains.
    captions = _Captions(out)
    with Progress(out, live=is_live) as progress:
        loop.wiretap(progress)
        loop.wiretap(captions)
        # With an id that others can know, the run obeys `agentloop runs stop`.
        execution_id = None if loop.journal is None else RandomIds().new_id("execution")
        return run_to_end(loop, QUESTION, decide, DemoCluster(), execution_id=execution_id)


def _print_next_steps(out: Console, state: AgentState, journal_file: str | None) -> None:
    """Print the commands with which to go on."""
    # The lines are copied, so the terminal wraps them.
    execution = state.execution
    if journal_file is not None and execution is not None:
        out.print("\nSee the run in the browser:")
        out.print(Text(f"  {_program()} trace view {execution.id} {journal_argument(journal_file)}"), soft_wrap=True)
    for purpose, command in _NEXT_STEPS.items():
        lines = [*([f"\n{purpose}"] if purpose else []), f"  {_program()} {command}"]
        out.print(Text("\n".join(lines)), soft_wrap=True)


def _program() -> str:
    """Return how a shell starts the command line of this environment, which may not be the one on PATH."""
    found = which("agentloop")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "agentloop"
    return f"{shlex.quote(sys.executable)} -m agentloop"


def _approver(out: Console, *, approve_all: bool) -> Decider:
    if not approve_all and can_prompt():
        return TerminalApprover(create_console(stderr=True))
    # Approval without a question is acceptable here alone: the services exist in this process only.
    source = "--yes" if approve_all else "no terminal to ask on"

    def approve_call(call: PendingCall) -> Decision:
        out.print(
            Text(f"  ?  {format_pending_call(call)}  waits: {as_one_line(call.reason)}", "yellow"), soft_wrap=True
        )
        out.print(Text(f"     approved ({source})", "yellow"))
        return approve(call.digest)

    return approve_call


class _Captions:
    """A wiretap that explains what the progress shows, each thing the first time only."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._shown: set[str] = set()

    def __call__(self, event: Event) -> None:
        caption = ""
        if isinstance(event, InferenceResponseReceived) and len(event.response.tool_calls) > 1:
            caption = "The calls of one response run in parallel."
        elif isinstance(event, ToolCallCompleted) and not event.execution.succeeded:
            caption = "A failed call does not affect the others. The model sees the error and can correct itself."
        elif isinstance(event, AgentExecutionSuspended):
            caption = (
                "The tool changes something, so its call waits for approval. The state could be stored until then."
            )
        if caption and caption not in self._shown:
            self._shown.add(caption)
            self._out.print(Text(f"     ({caption})", "italic cyan"))


def _print_heading(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))


# --- the tools ------------------------------------------------------------------------------------------------------

Status: TypeAlias = Literal["up", "down"]


@frozen
class ServiceReport:
    """The state of a service, as the tools return it."""

    name: str
    status: Status
    detail: str


def _initial_reports() -> dict[str, ServiceReport]:
    reports = (
        ServiceReport("web", "up", "211 requests per minute"),
        ServiceReport("payments", "down", "out of memory, no responses for 7 minutes"),
        ServiceReport("orders-db", "up", "12 connections"),
    )
    return {report.name: report for report in reports}


@define
class DemoCluster:
    """The services that the demo operates. The tools receive it as `ToolContext.dependencies`."""

    reports: dict[str, ServiceReport] = field(factory=_initial_reports)

    def report(self, name: str) -> ServiceReport:
        """Return the report of a service.

        Raises:
            LookupError: there is no such service; the message lists the services.
        """
        if name not in self.reports:
            raise LookupError(f"there is no service {name!r}; the services are {', '.join(self.reports)}")
        return self.reports[name]

    def restart(self, name: str) -> ServiceReport:
        """Restart a service and return its new report.

        Raises:
            LookupError: there is no such service.
        """
        self.reports[name] = evolve(self.report(name), status="up", detail="38 requests per minute")
        return self.reports[name]


@tool(effect="pure")
async def check_service(name: str, context: ToolContext[DemoCluster]) -> ServiceReport:
    """Report whether a service is up, and what its monitoring says.

    Args:
        name: the name of the service, such as "web".
        context: supplied by the loop.
    """
    await asyncio.sleep(0.05)  # as long as a health check takes, so that the parallel calls overlap visibly
    return context.dependencies.report(name)


@tool
async def restart_service(name: str, context: ToolContext[DemoCluster]) -> ServiceReport:
    """Restart a service, which drops its open requests. Returns its state afterwards.

    Args:
        name: the name of the service.
        context: supplied by the loop.
    """
    await asyncio.sleep(0.1)
    return context.dependencies.restart(name)


TOOLS = (check_service, restart_service)


# --- the scripted model ---------------------------------------------------------------------------------------------

_PATH = "/v1/chat/completions"
_BYTES_PER_TOKEN = 4
_WORDS = re.compile(r"\s*\S+\s*")
_UNKNOWN_QUESTION = (
    "I am a scripted model: I only know the question and the tools of the demo. For other questions, name a real model, such as "
    "--model openai:gpt-5 or --model ollama:qwen3."
)
_Turn: TypeAlias = tuple[str, Sequence[tuple[str, str]]]
"""The text of a response, and its calls: pairs of a tool and a service."""


def scripted_inference() -> CanInfer:
    """Return the scripted model, behind an HTTP client whose requests never leave the process."""
    # The domain `invalid` is reserved (RFC 2606), so a request that left the process would fail.
    config = LLMConfig(model=MODEL_NAME, base_url="http://scripted.invalid/v1", provider="scripted")
    return HttpInference(config, client=in_process_client(respond))


def respond(path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Respond to a Chat Completions request with a status, headers and a body.

    The model is stateless like a real one: it decides from the conversation in the request, and its texts quote the results
    in that conversation.

    Args:
        path: the path of the request's URL.
        body: the JSON document of the request.
    """
    if path != _PATH:
        return 404, {}, json.dumps({"error": {"message": f"there is no resource {path}"}}).encode()
    request = json.loads(body)
    # Everything the model knows is in the request, so that any process can continue a recorded run.
    results = _results_in(request["messages"])
    message = _message(_next_turn(request, results), first_id=len(results))
    sent, received = len(body) // _BYTES_PER_TOKEN, len(json.dumps(message)) // _BYTES_PER_TOKEN
    usage = {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}
    head = {"id": f"chatcmpl-demo-{len(results)}", "created": 0, "model": MODEL_NAME}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    if request.get("stream"):
        stream = _stream(message, finish, {**head, "object": "chat.completion.chunk"}, usage)
        return 200, {"content-type": "text/event-stream"}, "".join(stream).encode()
    choice = {"index": 0, "message": message, "finish_reason": finish}
    document = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return 200, {"content-type": "application/json"}, json.dumps(document).encode()


def _results_in(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the calls since the last question, each as `tool service`, with their results."""
    calls: dict[str, str] = {}
    results: list[tuple[str, str]] = []
    for message in messages:
        # Only the question itself starts anew: a budget adds a user message that asks for the last answer.
        if message["role"] == "user" and message["content"] == QUESTION:
            results.clear()
        for call in message.get("tool_calls") or ():
            service = json.loads(call["function"]["arguments"]).get("name", "")
            calls[call["id"]] = f"{call['function']['name']} {service}"
        if message["role"] == "tool":
            results.append((calls[message["tool_call_id"]], str(message["content"])))
    return results


def _next_turn(request: Mapping[str, Any], results: Sequence[tuple[str, str]]) -> _Turn:
    questions = [message["content"] for message in request["messages"] if message["role"] == "user"]
    offered = {entry["function"]["name"] for entry in request.get("tools", ())}
    if QUESTION not in questions or not (results or offered >= {entry.name for entry in TOOLS}):
        return _UNKNOWN_QUESTION, ()
    # The last step of a budget offers no tools; the answer then consists of what is known.
    turn = _next_calls(results) if offered else None
    return turn or (_answer(results), ())


def _next_calls(results: Sequence[tuple[str, str]]) -> _Turn | None:
    """Return what to do next; None when the answer is due."""
    calls = [call for call, _ in results]
    if not calls:
        services = ("web", "payments", "database")
        return "I check the services that a payment passes through.", [("check_service", name) for name in services]
    if "check_service orders-db" not in calls:
        return "The database is called orders-db here.", [("check_service", "orders-db")]
    # A person may have edited the restart to another service, so any restart counts.
    if not any(call.startswith("restart_service ") for call in calls):
        return "The payments service is down. A restart frees its memory.", [("restart_service", "payments")]
    last_call, last_result = results[-1]
    if last_call.startswith("restart_service ") and _report(last_result):
        return "I check whether the restart has helped.", [("check_service", "payments")]
    return None


def _answer(results: Sequence[tuple[str, str]]) -> str:
    """Write the final answer from what the tools have returned so far."""
    checks = [_report(result) for call, result in results if call.startswith("check_service ")]
    # The first report counts: after the restart the service is up.
    cause = next((report for report in checks if report.get("status") == "down"), None)
    if cause is None:
        return "I could not find the cause: no service reported that it is down."
    sentences = [f"The {cause['name']} service was down: {cause['detail']}."]
    restart = next((result for call, result in results if call.startswith("restart_service ")), None)
    if restart is None:
        sentences.append("I have not restarted it yet.")
    elif _report(restart):
        last = _report(results[-1][1])
        sentences.append(
            f"I restarted {_report(restart)['name']}. Now {last['name']} is {last['status']}: {last['detail']}."
        )
    else:
        sentences.append(f"I could not restart it ({restart}), so customers still cannot pay.")
    healthy = [report["name"] for report in checks if report and report["name"] != cause["name"]]
    if healthy:
        sentences.append(f"No problems were found with {' and '.join(healthy)}.")
    return " ".join(sentences)


def _report(result: str) -> dict[str, Any]:
    """Return the report in a result; empty for an error."""
    return json.loads(result) if result.startswith("{") else {}


def _message(turn: _Turn, first_id: int) -> dict[str, Any]:
    text, calls = turn
    # Call ids continue over the conversation, since results are matched with calls by id.
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"name": service})},
            }
            for number, (name, service) in enumerate(calls, first_id + 1)
        ]
    return message


def _stream(
    message: Mapping[str, Any], finish: str, head: Mapping[str, object], usage: Mapping[str, int]
) -> Iterator[str]:
    """Yield the server-sent events of a streamed response: the text word by word, then the calls."""
    deltas = [{"role": "assistant", "content": word} for word in _WORDS.findall(message["content"])]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(message.get("tool_calls", ()))]
    choices: list[dict[str, object]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    for choice in choices:
        yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"
    yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"
