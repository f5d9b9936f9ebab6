"""`agentloop agents`: check the files of agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
from attrs import asdict, field, frozen

from agentloop.agents.agent_builder import AgentSources, build_agent
from agentloop.errors import InvalidDescriptor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.agent_tool import AgentTool
from agentloop.loop.audit import Audit, format_audit
from agentloop.loop.unasked import UnaskedTool, format_unasked, unasked_tools
from agentloop.service.cli.agent_options import DEFAULT_APPROVAL, approvals, parse_variables, print_lines
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.execution import SessionGrants
from agentloop.service.cli.folder_modules import name_modules
from agentloop.service.cli.inventory import Problem, audit_option, print_problems, trust_of, trust_option
from agentloop.toolkits.statements import Trust
from agentloop.values.reprs import format_count

_EPILOG = """\
\b
Exit codes:
  0  no problems
  1  files have problems
  2  usage error, such as an unknown file
"""


@click.group()
def agents() -> None:
    """Check the files of agents.

    Example: `agentloop agents check support.md --allow myapp.tools`.
    """


@frozen
class CheckedAgent:
    """What a check of a file has found.

    Attributes:
        file: the file.
        problems: its problems.
        tools: the names of the tools that are known before its servers are started.
        agents: how many of them are sub-agents.
        variables: the variables that a program has to pass.
        unasked: the tools that `run` and `chat` run without a question.
        audit: the audit of the agent as `run` and `chat` run it; None if it was not requested, or the file has problems.
    """

    file: str
    problems: Sequence[Problem] = ()
    tools: Sequence[str] = field(default=())
    agents: int = 0
    variables: Sequence[str] = ()
    unasked: Sequence[UnaskedTool] = ()
    audit: Audit | None = None

    @classmethod
    def of(cls, file: str, sources: AgentSources, *, audit: bool) -> CheckedAgent:
        """Check a file: its keys, its import paths, and that the agent can be built. Keys of models are not needed."""
        try:
            _, needed = sources.read()
            is_strangers = not sources.trust.covers(sources.path)
            guards = approvals(DEFAULT_APPROVAL, SessionGrants(), from_start=is_strangers)
            loop = build_agent(AgentLoop, sources, guards=guards, needs_keys=False)
        except InvalidDescriptor as error:
            return cls(file, [Problem(*mistake) for mistake in error.mistakes])
        sub_agents = sum(isinstance(tool, AgentTool) for tool in loop.tools)
        audited = loop.audit() if audit else None
        return cls(file, (), loop.tools.names, sub_agents, sorted(needed), unasked_tools(loop), audited)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data, with its audit if there is one."""
        return {name: value for name, value in asdict(self).items() if name != "audit" or value is not None}

    def describe(self) -> str:
        """Describe a file without problems in a line."""
        counts = [format_count(len(self.tools) - self.agents, "tool"), format_count(self.agents, "sub-agent")]
        needed = [f"variables to pass: {', '.join(self.variables)}"] if self.variables else []
        return as_one_line(f"{self.file}: {', '.join([*counts, 'no problems', *needed])}")


@agents.command(name="check", epilog=_EPILOG, short_help="Check the files of agents.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a file may name. May be repeated.")
@click.option(
    "--allow-server",
    "allow_servers",
    multiple=True,
    metavar="NAME",
    help="A program or host that a file may start or connect to; * for any. May be repeated.",
)
@click.option(
    "--var",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the system prompts; without any, they are not checked. May be repeated.",
)
@trust_option
@audit_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def check(
    context: click.Context,
    *,
    files: Sequence[str],
    allow: Sequence[str],
    allow_servers: Sequence[str],
    variables: Sequence[str],
    trust: Sequence[str],
    audit: bool,
    as_json: bool,
) -> None:
    """Check each FILE that describes an agent, and print each problem with its file, key and line.

    Example: `agentloop agents check support.md --allow myapp.tools`.

    Modules that are allowed are imported, which executes them. No server is started and no model is called; API keys are not
    needed.

    With --audit, the command prints the holes that the audit finds, and the exit code ignores them. A test that allows no holes calls
    `assert_guarded`.
    """
    values, trusted = parse_variables(variables) or None, trust_of(trust)
    # --json must leave a valid document on stdout, whatever modules print while they are imported.
    name_modules(allow)
    with redirect_stdout(sys.stderr):
        checked = [
            CheckedAgent.of(file, _sources(file, allow, allow_servers, values, trusted), audit=audit) for file in files
        ]
    if as_json:
        click.echo(json.dumps([agent.as_json() for agent in checked], indent=2))
    else:
        for agent in checked:
            print_problems(agent.problems)
            if not agent.problems:
                click.echo(agent.describe())
                print_lines(format_unasked(agent.unasked))
            if agent.audit is not None:
                click.echo("\n".join(format_audit(agent.audit)))
    context.exit(1 if any(agent.problems for agent in checked) else 0)


def _sources(
    file: str,
    allow: Sequence[str],
    allow_servers: Sequence[str],
    variables: Mapping[str, str] | None,
    trust: Trust,
) -> AgentSources:
    if not Path(file).is_file():
        raise InvalidUsage(f"there is no file {file}")
    try:
        return AgentSources.of(file, allow, allow_servers, variables, trust=trust)
    except TypeError as error:
        raise InvalidUsage(str(error)) from error
