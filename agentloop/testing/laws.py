"""The laws of agentloop, by number."""

from __future__ import annotations

from collections.abc import Mapping

LAWS: Mapping[int, str] = {
    1: "Totality: executions and pending calls are together exactly the calls, disjoint and in call order.",
    2: "Pairing: no message and no encoded request holds a call without its execution.",
    3: "Immutability: nothing changes a value that it was given.",
    4: "Round trip: from_json(to_json(v)) == v for every value; a newer schema version is refused.",
    5: "Bounded: under StepLimit(n) at most n steps, and per step no more inferences than the driver declares, all counted.",
    6: "Accounting: an execution's usage is the sum of its inferences' usage; unknown stays unknown.",
    7: "Grammar: every run's event sequence is accepted by the grammar.",
    8: "Determinism: same responses, tools, clock and ids give equal states, whatever finishes first.",
    9: "Isolation: concurrent executions never see each other's state.",
    10: "Finality: what ToolCallCompleted says is what the state and the model get.",
    11: "Fail closed: an interceptor that raises never lets the call it guards run.",
    12: "Driver equivalence: one scenario gives the same calls, outcomes and points under every driver and mode.",
    13: "Prefix stability: within an epoch, a request's segments extend the previous request's.",
    14: "Effects: after a crash and a recovery, an effect ran at most once or is reported in doubt.",
    15: "Fold: the state rebuilt from the journal equals the state in memory.",
    16: "Decisions: an approval is used at most once and only for the call and arguments it was given for.",
    17: "Validity: arguments that reach a tool satisfy its schema.",
    18: "Secrets: no configured key appears in any event, error, repr, journal record or trace.",
    19: "Tidiness: after an execution ends in any way, tasks, threads and sockets are as before.",
    20: "Linearity: over a run each message is compiled, encoded and validated a bounded number of times.",
}


class LawBroken(AssertionError):  # named for what happened, as everything here
    """An implementation breaks a law.

    Attributes:
        law: the number of the law.
    """

    def __init__(self, law: int, why: str) -> None:
        super().__init__(f"law {law} is broken: {why}\n  {LAWS[law]}")
        self.law = law


def require(law: int, holds: object, why: str) -> None:
    """Raise unless something holds.

    Raises:
        LawBroken: when it does not.
    """
    if not holds:
        raise LawBroken(law, why)
