"""Candidates: the agents that an eval compares. Each is a function that makes a loop for a trial."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_infer import CanNameModel
from agentloop.contracts.can_journal import CanJournal
from agentloop.drivers.forwarding import innermost_driver
from agentloop.errors.kinds import ContractViolation, InvalidParameter
from agentloop.evals.cases import Case
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.json import format_json, thaw
from agentloop.values.system_prompts import PromptFunction
from agentloop.values.value import Value

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+|\b0x[0-9a-f]{6,}")
FINGERPRINT_CHARACTERS: Final = 10


@frozen(eq=False, repr=False, kw_only=True)
class TrialContext(Value):
    """What a candidate is made for.

    Attributes:
        case: the case.
        repeat: which repeat, from 0.
        seed: the seed of the trial; that of all candidates for this case and repeat.
        journal: where the trial is recorded; the runner sets it as that of the loop.
    """

    case: Case
    repeat: int
    seed: int
    journal: CanJournal = field(eq=False)

    @property
    def random(self) -> random.Random:
        """A new source of random numbers from the seed, for models that are scripted."""
        return random.Random(self.seed)  # noqa: S311  # for a simulation


MakeLoop: TypeAlias = Callable[[TrialContext], "AgentLoop[Any] | Awaitable[AgentLoop[Any]]"]
"""Makes the loop of a candidate for a trial; a plain or async function."""


@frozen(eq=False, repr=False)
class Candidate(Value):
    """An agent that is compared with others.

    Attributes:
        name: the name, unique in a suite.
        make: makes its loop for a trial; or a loop that serves all trials.
        version: distinguishes what no fingerprint can see, such as the body of a function: with another version, all trials run anew.
    """

    name: str
    make: MakeLoop | AgentLoop[Any] = field(eq=False)
    version: str = ""

    async def loop(self, context: TrialContext) -> AgentLoop[Any]:
        """Return the loop for a trial.

        Raises:
            ContractViolation: the function returned something else.
            Exception: whatever it raises.
        """
        if isinstance(self.make, AgentLoop):
            return self.make
        made: object = self.make(context)
        if isawaitable(made):
            made = await made
        if not isinstance(made, AgentLoop):
            raise ContractViolation(
                f"the candidate {self.name!r} returned {made!r:.100}; it has to return an AgentLoop"
            )
        return made


CandidatesLike: TypeAlias = "Mapping[str, MakeLoop | AgentLoop[Any]] | Iterable[Candidate | MakeLoop]"
"""Candidates by name, or a list of them; a function is named after itself."""


def as_candidates(given: CandidatesLike) -> tuple[Candidate, ...]:
    """Return candidates as a suite has them.

    Raises:
        InvalidParameter: there is none, two have the same name, or something else is among them.
    """
    if isinstance(given, Mapping):
        made: Sequence[Candidate] = [Candidate(name, make) for name, make in given.items()]
    else:
        made = [_as_candidate(each) for each in given]
    names = [candidate.name for candidate in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidParameter(f"two candidates are named {twice!r}; a result tells them apart by their names")
    if not made:
        raise InvalidParameter("a suite needs a candidate: candidates={'today': make_loop}")
    return tuple(made)


def _as_candidate(given: object) -> Candidate:
    if isinstance(given, Candidate):
        return given
    if isinstance(given, AgentLoop) and given.name:
        return Candidate(given.name, given)
    if not callable(given) or isinstance(given, AgentLoop):
        raise InvalidParameter(
            f"a candidate is a function that makes a loop, or a Candidate(name, …), not {given!r:.100}"
        )
    return Candidate(getattr(given, "__name__", type(given).__name__), given)


def fingerprint_of(loop: AgentLoop[Any], *beside: str) -> str:
    """Return a text that differs between loops whose trials have to differ.

    It covers the driver and its model, the system prompt, the tools as a model sees them, the interceptors and the compiler by their
    reprs, and the limits; not the bodies of functions.

    Args:
        loop: the loop.
        beside: texts that have to differ, too.
    """
    driver = innermost_driver(loop.driver)
    inference = getattr(driver, "inference", None)
    prompt = loop.system_prompt
    parts = [
        *beside,
        repr(loop.driver),
        inference.model_name if isinstance(inference, CanNameModel) else repr(inference),
        getattr(prompt.function, "__name__", "") if isinstance(prompt, PromptFunction) else str(prompt),
        *[f"{tool.spec!r}{format_json(thaw(tool.spec.parameters)).decode()}" for tool in loop.tools.by_name.values()],
        *[f"{layer.name} {layer!r}" for layer in loop.stack.layers],
        *[repr(interceptor) for interceptor in loop.interceptors],
        repr(loop.compiler),
        repr(loop.output_type),
        str(loop.max_steps),
    ]
    text = _ADDRESS.sub("", "\n".join(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
