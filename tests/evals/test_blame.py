"""Blame: the part that makes an agent worse is found, and only where the trials say so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentloop import AgentLoop, FunctionInference, Interceptor, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import InvalidParameter
from agentloop.evals import Case, EvalSuite, ExpectedCalls, Simulated, TrialContext, find_blame
from agentloop.values import InferenceRequest
from tests.evals.invoices import luck


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"{order}"


@tool
def refund_all(order: int) -> str:
    """Refund everything."""
    return f"{order}"


class Watching(Interceptor):
    """Does nothing."""


def desk(
    trial: TrialContext, *, prompt: str, tools: Sequence[Any], asked: list[InferenceRequest], model: str = "old"
) -> AgentLoop:
    """Return an agent that needs a careful prompt, a careful model and the right tool; otherwise it errs in most trials."""

    def answer(request: InferenceRequest) -> ToolCall | str:
        asked.append(request)
        if any(message.exchanges for message in request.messages):
            return "done"
        errs = luck(trial.seed) < 0.8
        is_careless = "careful" not in request.system_prompt or model == "worse"
        if errs and is_careless:
            return "I cannot do that."
        return ToolCall("1", request.tools[0].name, json.dumps({"order": 7}))

    return AgentLoop.for_model(FunctionInference(answer), tools=tools, system_prompt=prompt)


Make = Callable[[TrialContext], AgentLoop]


def suite_of(asked: list[InferenceRequest], changed: dict[str, Any], **options: Any) -> EvalSuite:
    old: dict[str, Any] = {"prompt": "Be careful.", "tools": [refund], "asked": asked}

    def before(trial: TrialContext) -> AgentLoop:
        return desk(trial, **old)

    def after(trial: TrialContext) -> AgentLoop:
        extra = changed.get("interceptors", ())
        parts = {**old, **{name: part for name, part in changed.items() if name != "interceptors"}}
        return desk(trial, **parts).with_interceptors(*extra)

    candidates: dict[str, Make] = {"before": before, "after": after}
    cases = [Case(name=f"{number}", input="Refund order 7.") for number in range(8)]
    return EvalSuite(
        "desk",
        cases,
        candidates,
        [ExpectedCalls(must=["refund"])],
        [Simulated({"*": "ok"})],
        **{"repeats": 12, **options},
    )


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"prompt": "Be quick.", "interceptors": [Watching()]}, "prompt"),
        ({"tools": [refund_all], "interceptors": [Watching()]}, "tools"),
        ({"model": "worse", "interceptors": [Watching()]}, "model"),
        ({"interceptors": [Watching()]}, ""),
    ],
)
@pytest.mark.parametrize("case", ["3", None])
async def test_the_part_that_matters_is_named(changed: dict[str, Any], cause: str, case: str | None) -> None:
    """Of two parts that have changed, it is the one that makes trials fail; on one case, and over all."""
    blame = await find_blame(suite_of([], changed), baseline="before", changed="after", case=case)
    assert blame.cause == cause, str(blame)
    assert blame.baseline == 1.0
    assert (blame.changed < 0.5) is bool(cause)
    assert {"interceptors", *([cause] if cause else [])} <= {part.part for part in blame.parts}
    assert "step limit" not in {part.part for part in blame.parts}
    if cause:
        assert blame.parts[0].restored > 0.5
        assert str(blame).startswith(
            f"baseline passes 100%, changed {blame.changed:.0%}: the {cause} matters\n  {cause}: 100% pass"
        )


async def test_too_few_repeats_blame_nothing() -> None:
    """Three trials of one case say nothing, however uneven."""
    blame = await find_blame(
        suite_of([], {"prompt": "Be quick."}), baseline="before", changed="after", case="3", repeats=3
    )
    assert blame.cause == ""
    assert "run more repeats" in str(blame)


async def test_blame_goes_on_with_the_trials_of_the_eval() -> None:
    """What is recorded runs once, also of the swaps."""
    asked, journal = list[InferenceRequest](), MemoryJournal()
    suite = suite_of(asked, {"prompt": "Be quick."}, repeats=8)
    await suite.run(journal=journal)
    recorded = len(await journal.list())
    blame = await find_blame(suite, baseline="before", changed="after", case="3", journal=journal)
    swaps = len(blame.parts)
    assert len(await journal.list()) == recorded + 8 * swaps
    asked.clear()
    assert await find_blame(suite, baseline="before", changed="after", case="3", journal=journal) == blame
    assert asked == []
    with pytest.raises(InvalidParameter, match="has no candidate 'afer', did you mean 'after'"):
        await find_blame(suite, baseline="before", changed="afer")
