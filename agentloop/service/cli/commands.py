"""The group of commands, each of which is loaded when it is first used."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

import click
from attrs import frozen

from agentloop import __version__
from agentloop.errors import JournalError
from agentloop.errors.hints import suggest
from agentloop.service.cli.errors import CommandInterrupted, InvalidUsage
from agentloop.service.cli.main import exit_code_after, open_null_device


@frozen
class CommandEntry:
    """A command that is not loaded yet.

    Attributes:
        module: its module, in which the command has its own name.
        summary: its line in the list of commands.
    """

    module: str
    summary: str


ENTRIES: Mapping[str, CommandEntry] = {
    "agents": CommandEntry("agentloop.service.cli.agents", "Check the files of agents."),
    "budgets": CommandEntry("agentloop.service.cli.budgets", "Show what budget accounts have spent, and what is left."),
    "chat": CommandEntry("agentloop.service.cli.chat", "Talk with a model and your tools."),
    "cluster": CommandEntry("agentloop.service.cli.cluster", "Show workers and queues, and manage schedules."),
    "config": CommandEntry(
        "agentloop.service.cli.configuration", "Show and change the default model and default options."
    ),
    "demo": CommandEntry("agentloop.service.cli.demo", "Watch an agent at work: no API key, no network."),
    "evals": CommandEntry("agentloop.service.cli.evals", "Compare agents on cases, and refuse those that got worse."),
    "grants": CommandEntry("agentloop.service.cli.grants", "Show, add or end what people allow for later calls."),
    "laws": CommandEntry(
        "agentloop.service.cli.laws", "List the laws of the contracts, or show one and what breaks it."
    ),
    "mcp": CommandEntry("agentloop.service.cli.mcp", "Serve tools, or an agent, over MCP."),
    "memory": CommandEntry("agentloop.service.cli.memory", "List, export or forget what agents remember."),
    "models": CommandEntry("agentloop.service.cli.models", "List providers and models, and what is known of them."),
    "run": CommandEntry("agentloop.service.cli.run", "Answer a question with a model and your tools."),
    "runs": CommandEntry("agentloop.service.cli.runs", "Inspect, resume and verify recorded executions."),
    "serve": CommandEntry("agentloop.service.cli.serve", "Serve an agent over HTTP."),
    "simulate": CommandEntry("agentloop.service.cli.simulate", "Run agents on simulated machines that fail."),
    "skills": CommandEntry("agentloop.service.cli.skills", "List skills, check them, or lock their content."),
    "submit": CommandEntry("agentloop.service.cli.cluster", "Queue an execution for the workers."),
    "tools": CommandEntry("agentloop.service.cli.tools", "List tools and ensembles, or check their definitions."),
    "trace": CommandEntry("agentloop.service.cli.trace", "Look at an execution in the browser, also while it runs."),
    "worker": CommandEntry("agentloop.service.cli.cluster", "Run submitted executions, beside other workers."),
}
"""The commands by name, in the order of the list."""


class Commands(click.Group):
    """A group that loads its commands on first use, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of the commands."""
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Load a command; return None for an unknown name."""
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command and its arguments; an unknown name is a usage error that asks for the closest one."""
        if args and not args[0].startswith("-") and args[0] not in ENTRIES:
            ctx.fail(
                f"No such command {args[0]!r:.100}{suggest(args[0], ENTRIES)}; `agentloop --help` lists the commands"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the list of commands without loading them."""
        # click reads the help of each command, for which it would load them all.
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in ENTRIES.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Ctrl-C ends it with the account of what was done until then."""
        import_module("agentloop.service.cli.console").escape_log_records()
        try:
            return super().invoke(ctx)
        # Only this outermost group catches the interruption; groups such as `runs` let it pass.
        except (CommandInterrupted, KeyboardInterrupt) as interruption:
            click.echo("\n".join(["Interrupted.", *filter(None, [str(interruption)])]), err=True)
            ctx.exit(exit_code_after(interruption))


def _debug(_: click.Context, __: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
    if value:
        os.environ[import_module("agentloop.service.cli.console").DEBUG_VARIABLE] = "1"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentloop", message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_debug,
    help="Print the tracebacks of tools and listeners that fail; AGENTLOOP_DEBUG=1 does the same.",
)
def agentloop() -> None:
    """Run the loop of an LLM agent: call a model, run the tools that it asks for, repeat until it answers.

    Start with `agentloop demo`.
    """


def run_commands(arguments: Sequence[str] | None) -> NoReturn:
    """Run a command, and end the process with its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed outside of an execution.
        SystemExit: otherwise.
    """
    if any("\0" in argument for argument in arguments or ()):
        click.echo("Error: an argument has a null character, which no name and no text can have", err=True)
        sys.exit(InvalidUsage.exit_code)
    # click itself reports Ctrl-C at a prompt or while it reads the arguments as exit code 1.
    try:
        code = agentloop.main(arguments, prog_name="agentloop", standalone_mode=False)
        # A disk that is full is noticed here, and not when the interpreter ends.
        sys.stdout.flush()
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        # Messages quote arguments and names from files, which may be long, or control the terminal.
        click.echo(import_module("agentloop.service.cli.console").as_short_lines(shown.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    # Commands convert the errors of their journal; this one was raised where none is expected, such as when it was closed.
    except JournalError as error:
        click.echo(
            import_module("agentloop.service.cli.console").as_short_lines(f"Error: {error}\n"), err=True, nl=False
        )
        sys.exit(1)
    except OSError as error:
        # Nothing more can be written: what is left in the buffer would be reported once more at the end.
        sys.stdout = open_null_device("w")
        place = f" {error.filename}" if error.filename else ""
        click.echo(f"Error: {error.strerror or error}{place}", err=True)
        sys.exit(1)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise abort.__context__ from None
        click.echo("Aborted!", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
