"""`agentloop demo`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.text import Text

from agentloop.cli.demo import story
from agentloop.cli.demo.shop import Shop
from agentloop.cli.execution import executed
from agentloop.cli.figures import counted
from agentloop.cli.outcome import exit_code, shortcoming, summary
from agentloop.cli.progress import Progress
from agentloop.cli.terminal import console
from agentloop.values.agent_state import AgentState

_ABOUT = (
    "A support agent of a small shop answers a customer. The model is scripted: it needs no key and no network, and its token "
    "counts are estimates. All else is real: the requests and answers in OpenAI's wire format, the loop, the tools, the "
    "permissions, and a SQLite database made on the spot."
)
_NEXT = """\
Now with a model and tools of yours:
  agentloop run "a question" --model ollama:qwen3 --tools your_tools.py"""


@click.command()
@click.pass_context
def demo(context: click.Context) -> None:
    """Watch an agent at work, with no key and no network.

    A support agent of a small shop answers a customer: it looks things up side by side, recovers from a wrong order
    number, and is kept from a refund that it may not make. Its model is scripted; all else is real, down to the HTTP
    messages and the SQLite database.
    """
    out = console()
    _introduce(out)
    with TemporaryDirectory(prefix="agentloop-demo-") as folder, Progress(out) as progress:
        shop = Shop.founded(Path(folder) / "shop.db")
        state = executed(story.told(shop, progress))
        _conclude(out, state, shop)
    context.exit(exit_code(state))


def _introduce(out: Console) -> None:
    _title(out, "agentloop demo")
    out.print(_ABOUT)
    _title(out, "The question")
    out.print(story.QUESTION)
    _title(out, "What happens")


def _conclude(out: Console, state: AgentState, shop: Shop) -> None:
    _title(out, "The answer")
    out.print(state.final_text or shortcoming(state))
    _title(out, "The sum")
    out.print(summary(state))
    refunds, tickets = counted(shop.refund_count(), "refund"), counted(shop.ticket_count(), "ticket")
    out.print(f"in the database: {refunds}, {tickets}")
    out.print(f"\n{_NEXT}")


def _title(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))
