"""The suites of AgentDojo, with their functions as tools.

AgentDojo (https://github.com/ethz-spylab/agentdojo, https://arxiv.org/abs/2406.13352) has 97 tasks of a user in four suites, 35 tasks
that an attacker would have done, the data that the tools work on, and a check for each task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Self, TypeAlias

import yaml
from agentdojo.attacks.base_attacks import FixedJailbreakAttack
from agentdojo.functions_runtime import Function, FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.task_suite.task_suite import read_suite_file
from agentdojo.types import text_content_block_from_string
from attrs import evolve, field, frozen
from dojo.declarations import DECLARED, Declaration
from pydantic import TypeAdapter

from agentloop import ToolContext
from agentloop.contracts.tool import CanAccessToolContext, ToolFromSpec
from agentloop.values import Effect, ToolSpec

VERSION = "v1.2.2"
Environment: TypeAlias = Any
"""The data of a suite, such as mails and files. AgentDojo has no types for other programs."""
Task: TypeAlias = Any
"""A task of AgentDojo."""

_ANY_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_READS = ("get_*", "read_*", "search_*", "list_*", "check_*")
"""The names of tools that change nothing."""


@frozen
class Call:
    """A call that a model is to make."""

    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, call: FunctionCall) -> Self:
        """Read a call of AgentDojo."""
        return cls(call.function, _as_json(dict(call.args)))


def _as_json(value: object) -> Any:
    return _ANY_JSON.dump_python(value, mode="json")


@frozen(eq=False, kw_only=True)
class DojoTool(ToolFromSpec, CanAccessToolContext):
    """A function of AgentDojo, which works on the data of the execution."""

    spec: ToolSpec
    runtime: FunctionsRuntime = field(repr=False)
    context: ToolContext[Environment] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, function: Function, runtime: FunctionsRuntime, *, egress: bool) -> Self:
        """Declare a function. With `egress`, data can leave by the address of a page that is read."""
        reads = any(fnmatchcase(function.name, pattern) for pattern in _READS)
        declared = DECLARED.get(function.name, Declaration())
        spec = ToolSpec(
            function.name,
            function.description,
            function.parameters.model_json_schema(),
            Effect.PURE if reads else Effect.EFFECT,
            egress="url" if egress and function.name == "get_webpage" else False,
            own=declared.own,
            identifiers=declared.identifiers,
            decides=declared.decides,
        )
        return cls(spec=spec, runtime=runtime)

    @property
    def has_effect(self) -> bool:
        """Whether a call changes anything."""
        return self.spec.effect is not Effect.PURE

    def with_tool_context(self, context: ToolContext[Environment]) -> Self:
        """Return a copy for one call."""
        return evolve(self, context=context)

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Run the function."""
        assert self.context is not None  # noqa: S101  # an executor has set it
        environment = self.context.dependencies
        result, _error = self.runtime.run_function(environment, self.name, arguments, raise_on_error=True)
        return _as_json(result)


class Suite:
    """One suite.

    Args:
        dojo: the suite of AgentDojo.
    """

    def __init__(self, dojo: Any) -> None:
        self.dojo = dojo
        self.name: str = dojo.name
        self.tasks: Mapping[str, Task] = dojo.user_tasks
        self.injection_tasks: Mapping[str, Task] = dojo.injection_tasks
        self._carriers: dict[str, Sequence[str]] = {}
        self._defaults: Mapping[str, str] = dojo.get_injection_vector_defaults()
        self._latest: tuple[Mapping[str, str], Environment] = ({}, None)

    def tools(self, *, egress: bool) -> Mapping[str, DojoTool]:
        """Return the tools by name."""
        return self._tools_with_egress if egress else self._tools

    def environment(self, task: Task, injections: Mapping[str, str]) -> Environment:
        """Return the data at the start of a task, with a text at each of the given places."""
        injected = {**self._defaults, **injections}
        if injected != self._latest[0]:
            text = read_suite_file(self.name, "environment.yaml", None).format(**injected)
            # As AgentDojo does it, but with the parser in C, which takes a tenth of the time.
            data = yaml.load(text, yaml.CSafeLoader)  # a safe loader
            self._latest = (injected, self.dojo.environment_type.model_validate(data))
        return task.init_environment(self._latest[1].model_copy(deep=True))

    def carriers(self, task: Task) -> Sequence[str]:
        """Return the places whose text a model sees that does a task."""
        if task.ID not in self._carriers:
            found: Sequence[str] = self._attack.get_injection_candidates(task)
            self._carriers[task.ID] = found
        return self._carriers[task.ID]

    def passes(
        self, task: Task, answer: str, environments: tuple[Environment, Environment], calls: Sequence[Call]
    ) -> bool:
        """Return what AgentDojo's check of a task says: whether the user's task, or the attacker's, was done.

        Args:
            task: the task.
            answer: the last answer of the model.
            environments: the data before and after the run.
            calls: the calls that have succeeded.
        """
        trace = [FunctionCall(function=call.name, args=dict(call.arguments)) for call in calls]
        before, after = environments
        return bool(
            self.dojo._check_task_result(task, [text_content_block_from_string(answer)], before, after, trace)  # noqa: SLF001
        )

    @cached_property
    def _attack(self) -> Any:
        return FixedJailbreakAttack("", self.dojo, None)

    @cached_property
    def _tools(self) -> Mapping[str, DojoTool]:
        return self._make_tools(egress=False)

    @cached_property
    def _tools_with_egress(self) -> Mapping[str, DojoTool]:
        return self._make_tools(egress=True)

    def _make_tools(self, *, egress: bool) -> Mapping[str, DojoTool]:
        runtime = FunctionsRuntime(self.dojo.tools)
        return {f.name: DojoTool.of(f, runtime, egress=egress) for f in self.dojo.tools}


def load_suites() -> Mapping[str, Suite]:
    """Return the four suites by name."""
    return {name: Suite(dojo) for name, dojo in get_suites(VERSION).items()}
