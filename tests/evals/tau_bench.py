"""The tasks of tau-bench as cases, and agents of planted quality for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from agentloop import AgentLoop, FunctionInference, Interceptor, ToolCall
from agentloop.evals import Case, CaseCall, Cases, TrialContext
from agentloop.testing import FakeTool
from agentloop.values import InferenceRequest, thaw
from tests.evals.invoices import luck

READS = ("calculate", "find_", "get_", "list_", "search_", "think")
"""How the names of tools begin that change nothing."""

Task = Mapping[str, Any]


def is_read(name: str) -> bool:
    return name.startswith(READS)


def tau_tasks(corpus: Path) -> list[Task]:
    lines = (corpus / "executor" / "tau_gold.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tau_tools(corpus: Path) -> dict[str, list[FakeTool]]:
    """Return the tools of each domain. None of them does anything: worlds answer their calls."""
    domains = json.loads((corpus / "executor" / "tau_tools.json").read_text(encoding="utf-8"))
    return {
        domain: [
            FakeTool(
                each["function"]["name"],
                parameters=each["function"]["parameters"],
                effect="pure" if is_read(each["function"]["name"]) else "effect",
            )
            for each in tools
        ]
        for domain, tools in domains.items()
    }


def tau_case(task: Task) -> Case:
    """Return a task as a case: gold calls get their recorded texts, and are what is expected."""
    calls = [
        CaseCall(name=action["name"], arguments=action["arguments"], error=result)
        if (result := action["result"]).startswith("Error")
        else CaseCall(name=action["name"], arguments=action["arguments"], value=result)
        for action in task["actions"]
    ]
    gold = [{"name": call.name, "arguments": thaw(call.arguments), "exactly": True} for call in calls]
    effects = [each for each, call in zip(gold, calls, strict=True) if not is_read(call.name) and not call.error]
    writes = [call.name for call in calls if not is_read(call.name)]
    return Case(
        name=task["id"],
        input=task["instruction"],
        tags=[task["domain"], "changes" if writes else "reads", *dict.fromkeys(writes)],
        expected={"calls": {"must": gold, "in_order": True, "counts": {"*": len(gold)}}, "effects": effects},
        calls=calls,
    )


def tau_cases(corpus: Path) -> Cases:
    return Cases(tau_case(task) for task in tau_tasks(corpus))


@frozen
class Plant:
    """How an agent errs, which the evals are to find.

    Attributes:
        share: in which share of the trials.
        tags: on cases with one of these tags.
        unless: a word in the system prompt with which it does not err; empty for none.
    """

    share: float
    tags: Sequence[str] = ()
    unless: str = ""

    def strikes(self, trial: TrialContext, prompt: str) -> bool:
        if self.unless and self.unless in prompt:
            return False
        return bool(set(self.tags) & set(trial.case.tags)) and luck("plant", trial.seed) < self.share


class Unimportant(Interceptor):
    """Does nothing."""


def tau_agent(
    trial: TrialContext,
    tools: Mapping[str, list[FakeTool]],
    plant: Plant,
    asked: Callable[[InferenceRequest], None] = lambda _: None,
    **parts: Any,
) -> AgentLoop:
    """Return an agent that knows the gold calls of its case, and errs as planted: it leaves out the last call that changes something."""
    case = trial.case
    last = max((place for place, call in enumerate(case.calls) if not is_read(call.name)), default=None)

    def answer(request: InferenceRequest) -> ToolCall | str:
        asked(request)
        done = sum(len(message.exchanges) for message in request.messages)
        left = list(case.calls)
        if last is not None and plant.strikes(trial, request.system_prompt):
            del left[last]
        if done == len(left):
            return "done"
        return ToolCall(f"{done}", left[done].name, json.dumps(thaw(left[done].arguments)))

    return AgentLoop.for_model(FunctionInference(answer), tools=tools[case.tags[0]], **parts)
