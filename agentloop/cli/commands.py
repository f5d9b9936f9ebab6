"""The commands, each loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click
from attrs import frozen

from agentloop import __version__
from agentloop.cli.errors import Interrupted

_INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended: 128 and the number of SIGINT."""


@frozen
class CommandEntry:
    """A command that is not loaded yet.

    Attributes:
        module: the module that it stands in; there it has the name of the command.
        summary: its line in the list of commands.
    """

    module: str
    summary: str


ENTRIES: Mapping[str, CommandEntry] = {
    "demo": CommandEntry("agentloop.cli.demo", "Watch an agent at work: no key, no network, a scripted model."),
    "mcp": CommandEntry("agentloop.cli.mcp", "Offer tools, or an agent, as an MCP server."),
    "run": CommandEntry("agentloop.cli.run", "Let a model answer a question with your tools."),
    "runs": CommandEntry("agentloop.cli.runs", "Look at recorded executions, go on with them, check them."),
    "tools": CommandEntry("agentloop.cli.tools", "List tools and ensembles, or check how they are defined."),
}
"""The commands by name, in the order in which they are listed."""


class Commands(click.Group):
    """A group whose commands are loaded when they are first used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of the commands."""
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Load a command; None when there is none of this name."""
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in ENTRIES.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; Ctrl-C ends it with what was done until then."""
        try:
            return super().invoke(ctx)
        except (Interrupted, KeyboardInterrupt) as stop:
            click.echo("\n".join(["Interrupted.", *filter(None, [str(stop)])]), err=True)
            ctx.exit(_INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentloop", message="%(prog)s %(version)s")
def agentloop() -> None:
    """Run the loop of an LLM agent: ask a model, run the tools it calls, until it answers.

    Start with `agentloop demo`.
    """
