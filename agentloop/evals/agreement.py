"""How far a judge agrees with people, measured on answers that both have judged."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.cases import TRIALS, Case
from agentloop.evals.judges import RubricJudge
from agentloop.evals.statistics import Estimate, cohens_kappa, share
from agentloop.evals.trials import Account
from agentloop.policies.budgets.prices import Prices, published_prices
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class LabeledAnswer(Value):
    """An answer that a person has judged.

    Attributes:
        case: the case.
        answer: the answer to it.
        passed: what the person says.
    """

    case: Case
    answer: str
    passed: bool


@frozen(eq=False, repr=False, kw_only=True)
class JudgeAgreement(Value):
    """How far a judge agrees with people.

    Attributes:
        judge: the name of the judge.
        kappa: Cohen's kappa with its interval: 1 for always, 0 for as often as by chance.
        agreement: the share of answers about which they agree, with its interval.
        too_kind: how many answers the judge passes and people do not.
        too_strict: how many people pass and the judge does not.
        cost: US dollars; None where the price is not known.
    """

    judge: str
    kappa: Estimate
    agreement: Estimate
    too_kind: int
    too_strict: int
    cost: float | None = None

    def __str__(self) -> str:
        kappa, agreed = self.kappa, self.agreement
        return (
            f"{self.judge}: kappa {kappa.value:.2f} [{kappa.low:.2f}, {kappa.high:.2f}], agrees with people on {agreed.value:.0%} "
            f"[{agreed.low:.0%}, {agreed.high:.0%}] of {agreed.count}; {self.too_kind} times too kind, {self.too_strict} times too strict"
        )


async def measure_agreement(
    judge: RubricJudge,
    labeled: Iterable[LabeledAnswer],
    *,
    journal: CanJournal | None = None,
    prices: Prices | None = None,
) -> JudgeAgreement:
    """Compare a judge with people.

    Args:
        judge: the judge.
        labeled: answers that people have judged; a hundred say more than ten.
        journal: where the verdicts are recorded, so that no answer is judged twice; in memory by default.
        prices: the prices of models; by default the published ones.

    Raises:
        InvalidParameter: there is no answer.
        ExecutionError: the model fails, or gives no verdict.
    """
    answers, kept = list(labeled), MemoryJournal() if journal is None else journal
    if not answers:
        raise InvalidParameter("a judge is compared with people by answers that they have judged; there is none")
    account = Account(published_prices() if prices is None else prices)
    place = f"{TRIALS}agreement"
    given = [
        (await judge.judge(each.case, each.answer, journal=kept, place=place, account=account)).passes
        for each in answers
    ]
    people = [each.passed for each in answers]
    pairs = list(zip(given, people, strict=True))
    return JudgeAgreement(
        judge=judge.name,
        kappa=cohens_kappa(given, people),
        agreement=share(sum(mine == theirs for mine, theirs in pairs), len(pairs)),
        too_kind=pairs.count((True, False)),
        too_strict=pairs.count((False, True)),
        cost=account.cost,
    )
