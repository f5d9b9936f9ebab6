"""The tasks of AgentDojo as cases of an eval: its data are a world in memory, and its own checks score."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dojo.suites import Call, Environment, Suite, Task, load_suites

from agentloop import AgentLoop, FunctionInference, ToolCall, ToolContext
from agentloop.evals import CanScore, Case, Cases, Simulated, TrialContext, TrialRun, WorldCall
from agentloop.values import InferenceRequest

suites = cache(load_suites)


def dojo_cases(*names: str) -> Cases:
    """Return the tasks of the users in these suites as cases; by default those of all suites."""
    return Cases(
        Case(name=f"{suite.name}/{task.ID}", input=task.PROMPT, tags=[suite.name])
        for suite in suites().values()
        if suite.name in (names or suites())
        for task in suite.tasks.values()
    )


def task_of(case: Case) -> tuple[Suite, Task]:
    """Return the suite and the task of a case."""
    suite, _, task = case.name.partition("/")
    return suites()[suite], suites()[suite].tasks[task]


def data_of(case: Case) -> Environment:
    """Return the data at the start of a case, such as mails and files."""
    suite, task = task_of(case)
    return suite.environment(task, {})


async def use_tool(case: Case, data: Environment, name: str, arguments: Mapping[str, Any]) -> Any:
    """Run a tool of AgentDojo on the data of a trial."""
    tool = task_of(case)[0].tools(egress=False)[name]
    context = ToolContext[Environment](execution_id="", agent_id="", idempotency_key="", dependencies=data)
    return await tool.with_tool_context(context).use(**arguments)


async def _simulate(call: WorldCall, **arguments: Any) -> Any:
    return await use_tool(call.case, call.state, call.name, arguments)


def dojo_world() -> Simulated:
    """Return the world in which each trial has data of its own."""
    return Simulated({"*": _simulate}, state=data_of)


class DojoCheck(CanScore):
    """Scores by AgentDojo's own check of the task, on the data as the trial has left them."""

    name = "agentdojo"

    async def score(self, run: TrialRun) -> bool:
        """Return whether the task was done."""
        suite, task = task_of(run.case)
        before, after = data_of(run.case), data_of(run.case)
        done = [Call(entry.name, dict(entry.arguments)) for entry in run.ledger if entry.status == "succeeded"]
        for call in done:
            await use_tool(run.case, after, call.name, call.arguments)
        return suite.passes(task, run.answer, (before, after), done)


Choose = Callable[[TrialContext, list[Call]], list[Call]]


def dojo_agent(trial: TrialContext, choose: Choose = lambda _, calls: calls) -> AgentLoop:
    """Return an agent that knows the calls of its task, and makes those that a function chooses.

    Args:
        trial: the trial.
        choose: returns the calls that it makes, from those that it should.
    """
    suite, task = task_of(trial.case)
    calls = choose(trial, [Call.of(call) for call in task.ground_truth(data_of(trial.case))])

    def answer(request: InferenceRequest) -> ToolCall | str:
        made = sum(len(message.exchanges) for message in request.messages)
        if made < len(calls):
            return ToolCall(f"{made}", calls[made].name, json.dumps(dict(calls[made].arguments)))
        return task.GROUND_TRUTH_OUTPUT or "Done."

    tools = suite.tools(egress=False).values()
    return AgentLoop.for_model(FunctionInference(answer), tools=[*tools], max_steps=None)
