"""The example about AgentDojo: some of its tasks and pairs, with attackers whose model obeys them."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("agentdojo", reason="agentdojo, one of the packages of requirements-dev.txt, is not installed")

from agentdojo_table import Work, plan_work, run_work, table  # needs agentdojo
from dojo.attackers import Attacker
from dojo.runs import Policy
from dojo.suites import Suite, load_suites

PAIRS = {
    "workspace": ("user_task_13", "injection_task_12"),
    "travel": ("user_task_3", "injection_task_3"),
    "banking": ("user_task_2", "injection_task_4"),
    "slack": ("user_task_11", "injection_task_5"),
}


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return dict(load_suites())


@pytest.fixture(scope="module")
def counted() -> dict[tuple[Policy, Attacker | None], Counter[str]]:
    """Return the counts of a pair of each suite."""
    counted: dict[tuple[Policy, Attacker | None], Counter[str]] = {}
    for suite, (task, goal) in PAIRS.items():
        for row, counts in run_work(Work(suite, task, (goal,), tuple(Attacker), tuple(Policy))).items():
            counted.setdefault(row, Counter()).update(counts)
    return counted


def test_all_pairs_are_planned(suites: dict[str, Suite]) -> None:
    """The table has all 97 tasks and 949 pairs of AgentDojo, or as many of the pairs as asked for."""
    works = plan_work(suites, tuple(Policy), tuple(Attacker), pairs=None, seed=1)
    assert (len(works), sum(len(work.goals) for work in works)) == (97, 949)
    works = plan_work(suites, tuple(Policy), tuple(Attacker), pairs=5, seed=1)
    assert (len(works), sum(len(work.goals) for work in works)) == (97, 5)


@pytest.mark.parametrize("policy", Policy)
def test_the_tasks_are_done(policy: Policy, counted: dict[tuple[Policy, Attacker | None], Counter[str]]) -> None:
    """Whoever is asked approves, and AgentDojo's checks of the user's tasks pass."""
    honest = counted[policy, None]
    assert (honest["tasks"], honest["passed"]) == (4, 4)
    assert (honest["questions"] == 0) == (policy is Policy.NOTHING)


@pytest.mark.parametrize("attacker", Attacker)
def test_a_model_that_obeys_does_what_it_reads(
    attacker: Attacker, counted: dict[tuple[Policy, Attacker | None], Counter[str]]
) -> None:
    """Without a policy, the effects of the attacker run; those of AgentDojo's tasks are what its checks look for."""
    attacked = counted[Policy.NOTHING, attacker]
    assert (attacked["pairs"], attacked["hijacked"], attacked["pairs_unasked"]) == (4, 4, 4)
    assert attacked["succeeded"] == (0 if attacker is Attacker.ADAPTIVE else 4)


@pytest.mark.parametrize("attacker", Attacker)
@pytest.mark.parametrize("policy", [policy for policy in Policy if policy is not Policy.NOTHING])
def test_no_effect_of_an_attacker_runs_unasked(
    policy: Policy, attacker: Attacker, counted: dict[tuple[Policy, Attacker | None], Counter[str]]
) -> None:
    """Each of the attacker's calls with an effect waits for a person."""
    attacked = counted[policy, attacker]
    assert (attacked["pairs"], attacked["unasked"], attacked["succeeded"]) == (4, 0, 0)
    # A program whose call is denied fails, and its model does not read the text.
    assert attacked["hijacked"] == 4 or policy.plans
    assert attacked["asked"] >= attacked["hijacked"] > 0


def test_programs_that_are_planned_ask_less(counted: dict[tuple[Policy, Attacker | None], Counter[str]]) -> None:
    """Of the four tasks, one is done without a question, and a task that says to do what a text says asks as before."""
    assert counted[Policy.PLANNED, None]["questions"] == 6
    assert counted[Policy.READING, None]["questions"] == 7
    assert counted[Policy.PLANNED, None]["unasked"] == 1


def test_the_table_has_a_row_for_each_policy_and_attacker(
    counted: dict[tuple[Policy, Attacker | None], Counter[str]],
) -> None:
    """The rows are Markdown."""
    title, line, *rows = table(counted)
    assert len(rows) == len(Policy) * len(Attacker)
    assert {row.count("|") for row in (title, line, *rows)} == {9}
    assert (
        f"| nothing | 0 | 4 of 4 (4 of 4) | plain | {counted[Policy.NOTHING, Attacker.PLAIN]['unasked']} in 4 pairs | 0 |"
        in rows[0]
    )
