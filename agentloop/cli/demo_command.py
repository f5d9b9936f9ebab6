"""`agentloop demo`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.text import Text

from agentloop.cli.console import console, exit_code, printable, shortcoming, summary
from agentloop.cli.demo import durable_story, story
from agentloop.cli.demo.captions import Captions
from agentloop.cli.demo.person import Person
from agentloop.cli.demo.shop import Shop
from agentloop.cli.errors import BadUsage
from agentloop.cli.execution import Decider, TerminalApprover, can_ask, concluded
from agentloop.cli.options import Manner, manner_options
from agentloop.cli.progress import Progress
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.state import AgentState

_ABOUT = (
    "A support agent of a small shop answers a customer. The model is scripted: it needs no key and no network, and its token "
    "counts are estimates. All else is real: the requests and answers in OpenAI's wire format, the loop, the tools, the "
    "permissions, and a SQLite database made on the spot."
)
_NEXT = """\
The same as a command, and then with a model and tools of yours:
  agentloop run --model demo
  agentloop run "a question" --model ollama:qwen3 --tools your_tools.py"""

_ABOUT_DURABLE = (
    "An agent pays an invoice, in a worker process whose journal is a SQLite file. The model is scripted: no key and no network. The "
    "processes, the files and SIGKILL are real."
)
_NEXT_DURABLE = """\
The same with a model and tools of yours; kill it whenever you like:
  agentloop run "a question" --model ollama:qwen3 --tools your_tools.py --journal runs.db
  agentloop runs list --journal runs.db"""


@click.command()
@manner_options
@click.option(
    "--durable",
    is_flag=True,
    help="Another demo: a worker process is killed in the middle of its effects, a second one goes on from the journal, and every "
    "effect is accounted for.",
)
@click.option("--ask", is_flag=True, help="Ask you, instead of a scripted person, about the calls that wait.")
@click.pass_context
def demo(context: click.Context, *, manner: Manner, durable: bool, ask: bool) -> None:
    """Watch an agent at work, with no key and no network.

    A support agent of a small shop answers a customer: it looks things up side by side, recovers from a wrong order
    number and from a carrier that does not answer, is kept from a refund that it may not make, and waits for a person
    where it changes something. Then it is asked for more than its budget allows. Its model is scripted; all else is real,
    down to the HTTP messages and the SQLite database.

    With --durable: a worker begins to pay an invoice, is killed with SIGKILL, and another one recovers what it did.
    """
    if durable:
        _played_durably(context, manner, ask=ask)
    if ask and not can_ask():
        raise BadUsage("--ask needs a terminal to ask on; without it, a scripted person decides")
    out = console()
    _title(out, "agentloop demo")
    out.print(_ABOUT)
    out.print(f"It is asked with --driver {manner.driver_name} --mode {manner.mode}.")
    with TemporaryDirectory(prefix="agentloop-demo-") as folder, Progress(out) as progress:
        shop = Shop.founded(Path(folder) / "shop.db")
        scenes = _Scenes(out, progress, shop)
        first = scenes.play(
            story.complaint_loop(manner),
            story.COMPLAINT,
            TerminalApprover(console(stderr=True)) if ask else Person(out),
        )
        out.print(f"in the database: {shop.sum()}")
        last = scenes.play(story.rounds_loop(manner), story.ROUNDS, Person(out))
    out.print(f"\n{_NEXT}")
    context.exit(exit_code(first) or (0 if last.final_text else exit_code(last)))


def _played_durably(context: click.Context, manner: Manner, *, ask: bool) -> None:
    if ask or manner != Manner():
        raise BadUsage("--durable has one manner and asks nobody; leave the other options out")
    out = console()
    _title(out, "agentloop demo --durable")
    out.print(_ABOUT_DURABLE)
    with TemporaryDirectory(prefix="agentloop-demo-") as folder:
        try:
            went_well = durable_story.play(out, Path(folder))
        except durable_story.WorkerFailed as error:
            raise click.ClickException(str(error)) from error
    out.print(f"\n{_NEXT_DURABLE}")
    context.exit(0 if went_well else 1)


class _Scenes:
    """Plays the questions one after the other; captions are shown once in all of them."""

    def __init__(self, out: Console, progress: Progress, shop: Shop) -> None:
        self._out = out
        self._listeners = (progress, Captions(out))
        self._shop = shop

    def play(self, loop: AgentLoop, question: str, decide: Decider) -> AgentState:
        """Show a question, what happens, the answer and the sum."""
        _title(self._out, "The question")
        self._out.print(question)
        _title(self._out, "What happens")
        for listener in self._listeners:
            loop.wiretap(listener)
        state = concluded(loop, question, decide, self._shop)
        _title(self._out, "The answer")
        self._out.print(printable(state.final_text) or shortcoming(state))
        _title(self._out, "The sum")
        if state.final_text and shortcoming(state):
            self._out.print(shortcoming(state))
        self._out.print(summary(state))
        return state


def _title(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))
