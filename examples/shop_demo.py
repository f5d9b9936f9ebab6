"""A support agent of a small shop, with a scripted model and everything else real. From a shell:

    python examples/shop_demo.py
    python examples/shop_demo.py --driver react --mode text --stream
    python examples/shop_demo.py --ask

The agent answers two questions. In the first, calls run in parallel, one fails and the model corrects it, one is retried when
the carrier does not respond, a rule blocks a refund, two calls wait for a person who approves one and edits the other, and
one result comes from the cache. The second question needs more steps than its budget allows, and ends with an answer from
the results so far. The model needs no API key and no network, yet it is asked in OpenAI's wire format, in any mode.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import singledispatchmethod
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.text import Text
from shop import scripted_model
from shop.database import Shop
from shop.scripts import COMPLAINT, STATUS_LETTERS
from shop.tools import TOOLS

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.execution import AgentExecutionSuspended
from agentloop.events.inference import InferenceRequestStarted, InferenceResponseReceived
from agentloop.events.resilience import ToolCallCached, ToolCallRetried
from agentloop.events.tool_calls import ToolCallBlocked, ToolCallCompleted
from agentloop.interception.rules import Permissions, RequireApproval, Rule
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.config import LLMConfig
from agentloop.models.http_client import in_process_client
from agentloop.models.http_inference import HttpInference
from agentloop.policies.budgets.budget import Budget
from agentloop.policies.resilience.resilience import Resilience
from agentloop.service.cli.agent_options import DriverOptions, driver_options
from agentloop.service.cli.console import (
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    format_call,
    summarize,
)
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.execution import Decider, TerminalApprover, can_prompt, run_to_end
from agentloop.service.cli.main import replace_unencodable_output
from agentloop.service.cli.progress import Progress
from agentloop.values.capabilities import Capabilities, CapabilityRow
from agentloop.values.decisions import Decision, PendingCall, approve, deny, edit
from agentloop.values.event import Event
from agentloop.values.points import BeforeToolUse
from agentloop.values.state import AgentState

_INTRODUCTION = (
    "A support agent of a small shop answers a customer. The model is scripted: it needs no API key and no network, and its token "
    "counts are estimates. Everything else is real: the requests and responses in OpenAI's wire format, the loop, the tools, the "
    "permissions, and a SQLite database in a temporary directory."
)


@click.command()
@driver_options
@click.option("--ask", is_flag=True, help="Ask you, instead of a scripted person, about the calls that need approval.")
@click.pass_context
def main(context: click.Context, *, driver: DriverOptions, ask: bool) -> None:
    """Watch a support agent answer two questions, without an API key and without a network."""
    if driver.mode == "program":
        raise InvalidUsage("the scripted model of the shop writes no programs; choose another mode")
    if ask and not can_prompt():
        raise InvalidUsage("--ask needs a terminal; without it, a scripted person decides")
    logging.getLogger("agentloop.tools").addHandler(logging.NullHandler())  # the progress shows the calls that fail
    out = create_console()
    _print_heading(out, "A support agent")
    out.print(_INTRODUCTION)
    out.print(f"It runs with --driver {driver.name} --mode {driver.mode}.")
    with TemporaryDirectory(prefix="agentloop-shop-") as folder, Progress(out) as progress:
        shop = Shop.create(Path(folder) / "shop.db")
        demo = _Demo(out, progress, shop)
        approver = TerminalApprover(create_console(stderr=True)) if ask else Person(out)
        first = demo.play(complaint_loop(driver), COMPLAINT.question, approver)
        out.print(f"in the database: {shop.summary()}")
        last = demo.play(letters_loop(driver), STATUS_LETTERS.question, Person(out))
    context.exit(exit_code_of(first) or (0 if last.final_text else exit_code_of(last)))


class _Demo:
    """Plays one question after the other; each caption is shown once."""

    def __init__(self, out: Console, progress: Progress, shop: Shop) -> None:
        self._out = out
        self._listeners = (progress, Captions(out))
        self._shop = shop

    def play(self, loop: AgentLoop, question: str, decide: Decider) -> AgentState:
        """Print the question, the progress, the answer and a summary."""
        _print_heading(self._out, "Question")
        self._out.print(question)
        _print_heading(self._out, "Progress")
        for listener in self._listeners:
            loop.wiretap(listener)
        state = run_to_end(loop, question, decide, self._shop)
        _print_heading(self._out, "Answer")
        self._out.print(as_printable(state.final_text or "") or describe_problem(state))
        _print_heading(self._out, "Summary")
        if state.final_text and describe_problem(state):
            self._out.print(describe_problem(state))
        self._out.print(summarize(state))
        return state


def _print_heading(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))


# --- the agents -----------------------------------------------------------------------------------------------------

SYSTEM_PROMPT = (
    "You answer the customers of a small shop. Look everything up, never guess. What you may not do yourself goes to a "
    "colleague, as a ticket."
)
REFUND_LIMIT_CENTS = 5_000
LETTERS_MAX_STEPS = 3
CONFIG = LLMConfig(model=scripted_model.NAME, base_url="http://scripted.invalid/v1", provider="scripted")
CAPABILITIES = (
    CapabilityRow("scripted:*", Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")),
)


def _is_large(point: BeforeToolUse) -> bool:
    cents = point.arguments["cents"]
    return isinstance(cents, int) and cents > REFUND_LIMIT_CENTS


PERMISSIONS = Permissions(
    deny=[
        Rule(
            tool="refund",
            when=_is_large,
            reason=f"refunds above {REFUND_LIMIT_CENTS / 100:.2f} need a person; open a ticket",
        )
    ]
)


def scripted_inference() -> CanInfer:
    """Return the scripted model, behind an HTTP client whose requests never leave the process."""
    return HttpInference(CONFIG, client=in_process_client(scripted_model.respond))


def complaint_loop(driver: DriverOptions) -> AgentLoop:
    """Return the loop for the first question, in which calls that change something wait for approval."""
    return _loop(driver, [RequireApproval(reason="it changes the shop's books")])


def letters_loop(driver: DriverOptions) -> AgentLoop:
    """Return the loop for the second question, whose budget reserves its last step for an answer without tools."""
    return _loop(driver, [Budget(steps=LETTERS_MAX_STEPS)])


def _loop(driver: DriverOptions, interceptors: Sequence[CanIntercept]) -> AgentLoop:
    return AgentLoop(
        driver.build(scripted_inference(), CAPABILITIES),
        TOOLS,
        system_prompt=SYSTEM_PROMPT,
        interceptors=[PERMISSIONS, Resilience(), *interceptors],
        max_steps=10,
    )


# --- the person and the captions ------------------------------------------------------------------------------------

APPROVED_VOUCHER_CENTS = 1_500


class Person:
    """A scripted person who approves tickets, reduces vouchers and denies everything else.

    Args:
        console: where the decisions are printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, call: PendingCall) -> Decision:
        """Decide about one call."""
        self._console.print(Text(f"  ?  {format_call(call.call)}  waits: {as_one_line(call.reason)}", "yellow"))
        if call.call.name == "open_ticket":
            return self._announce("yes", approve(call.digest))
        if call.call.name == "give_voucher":
            reduced = {**call.call.arguments, "cents": APPROVED_VOUCHER_CENTS}
            return self._announce(f"yes, but cents={APPROVED_VOUCHER_CENTS}", edit(reduced, call.digest))
        return self._announce("no", deny("the person in charge says no", call.digest))

    def _announce(self, text: str, decision: Decision) -> Decision:
        self._console.print(Text(f"     the person (scripted): {text}", "yellow"))
        return decision


class Captions:
    """A wiretap that explains what the progress shows, each thing the first time only.

    Args:
        console: where the captions are printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Print the caption of an event, unless it was printed before."""
        caption = self._caption(event)
        if caption and caption not in self._shown:
            self._shown.add(caption)
            self._console.print(Text(f"     ({caption})", "italic cyan"))

    @singledispatchmethod
    def _caption(self, event: Event) -> str:  # noqa: ARG002  # other events have no caption
        return ""

    @_caption.register
    def _of_request(self, event: InferenceRequestStarted) -> str:
        if event.request.tools:
            return ""
        return "The budget's last step: the request offers no tools and asks for an answer from the results so far."

    @_caption.register
    def _of_response(self, event: InferenceResponseReceived) -> str:
        return "The calls of one response run in parallel." if len(event.response.tool_calls) > 1 else ""

    @_caption.register
    def _of_completion(self, event: ToolCallCompleted) -> str:
        return "" if event.execution.succeeded else "The model sees the error and can correct itself."

    @_caption.register
    def _of_block(self, _: ToolCallBlocked) -> str:
        return "A rule of the program blocks the call; the model sees the reason."

    @_caption.register
    def _of_retry(self, _: ToolCallRetried) -> str:
        return "A call that is safe to repeat is retried without a request to the model."

    @_caption.register
    def _of_cache(self, _: ToolCallCached) -> str:
        return "The same call as before: its result comes from the cache, and the tool does not run."

    @_caption.register
    def _of_suspension(self, _: AgentExecutionSuspended) -> str:
        return "Calls that change something wait for approval. The state could be stored until then."


if __name__ == "__main__":
    replace_unencodable_output()
    main()
