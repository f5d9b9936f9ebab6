"""The doors of a loop to rooms above it: each loads a module by its name when the loop first needs it, typed by a protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib import import_module
from os import PathLike
from typing import Any, Protocol, Unpack, cast

from agentloop.contracts.can_accept import OutputCheck
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.run_log import CanAnswerCalls, ExecutionLog
from agentloop.loop.parts import FileGrants, LoopParts
from agentloop.values.decisions import Decision
from agentloop.values.records import InDoubt
from agentloop.values.run_requests import Identity
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock


class CanRecordExecutions(Protocol):
    """Creates and reopens the logs of executions; `agentloop.durable.recovery` has it."""

    def create_log(
        self,
        loop: LoopParts,
        state: AgentState,
        journal: CanJournal,
        in_doubt: InDoubt,
        clock: Clock,
        *,
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> ExecutionLog:
        """Return the log of an execution that is not reopened from a journal."""

    async def reopen_interrupted(
        self,
        journal: CanJournal,
        execution_id: str,
        in_doubt: InDoubt,
        clock: Clock,
        *,
        check: Callable[[], None],
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> tuple[AgentState, ExecutionLog | None]:
        """Return the newest recorded state of an execution, and its log if it is in progress."""

    async def open_or_reopen(
        self,
        journal: CanJournal,
        execution_id: str,
        in_doubt: InDoubt,
        clock: Clock,
        *,
        check: Callable[[], None],
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> tuple[AgentState | None, ExecutionLog | None]:
        """Return the newest recorded state of an execution, None if it has not started; and its log if something can run."""

    async def reopen_suspended(
        self,
        journal: CanJournal,
        suspended: AgentState | str,
        decisions: Mapping[str, Decision],
        in_doubt: InDoubt,
        clock: Clock,
        *,
        check: Callable[[], None],
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> tuple[AgentState, ExecutionLog | None]:
        """Return a suspended state with decisions applied, and its log if a call can run now."""

    def describe_origin(self, log: ExecutionLog, loop: LoopParts, state: AgentState) -> None:
        """Record the composition of the loop with the start of an execution that `open_or_reopen` has claimed."""


class CanBuildAgents(Protocol):
    """Builds the loop of an agent file; `agentloop.agents.agent_builder` has it."""

    def build_from_file(
        self,
        create_loop: Callable[..., Any],
        path: str | PathLike[str],
        parts: Mapping[str, Any],
        *,
        model: str | ModelConfig | CanInfer | None = None,
        **grants: Unpack[FileGrants],
    ) -> Any:
        """Return the loop of the agent that a file describes."""


class CanMaskExits(Protocol):
    """Masks secrets where texts leave the process; `agentloop.durable.exits` does."""

    def redaction_of(self, journal: object, parts: Iterable[object]) -> CanRedactRecords:
        """Return what masks what a journal masks, and the secrets that parts hold."""


class CanApplyPolicies(Protocol):
    """Applies the policies that tools declare; `agentloop.policies.resilience.resilience` does."""

    def applies_all(self, interceptors: Iterable[CanIntercept]) -> bool:
        """Return whether one of the interceptors applies every policy, or leaves it out on purpose."""

    def single_layers(self, interceptors: Iterable[CanIntercept]) -> frozenset[str]:
        """Return the names of the policies that single layers among the interceptors apply."""

    def declared_layers(self, policies: Sequence[str], kept: MutableMapping[Any, Any]) -> CanIntercept:
        """Return an interceptor that applies policies where tools declare them."""


class CanCheckAnswers(Protocol):
    """Asks checks about final answers; `agentloop.policies.output_checks` does."""

    def output_checks(self, checks: object) -> Sequence[object]:
        """Return the checks of the parameter `output_check`."""

    def checking_layer(self, checks: Sequence[Any], read: OutputCheck | None, max_retries: int) -> CanIntercept:
        """Return the interceptor that asks these checks."""


class CanKeepSessions(Protocol):
    """Lets messages wait for their turns in sessions; `agentloop.durable.sessions` does."""

    def agent_of_session(self, session: str) -> str:
        """Return the id of the agent whose executions are the turns of a session."""

    def open_turn(
        self,
        loop: Any,
        session: str,
        given: object,
        execution_id: str | None,
        run: Callable[[Any, AgentState, str, ExecutionLog], Awaitable[AgentState]],
        *,
        dependencies: object = None,
        principal: Identity | None = None,
        log: ExecutionLog | None = None,
    ) -> AbstractAsyncContextManager[tuple[AgentState, str, ExecutionLog]]:
        """Accept a message of a session, and wait for its turn."""


@cache
def journaling() -> CanRecordExecutions:
    """Return what records executions; it is loaded with the first execution that has a journal."""
    return cast("CanRecordExecutions", import_module("agentloop.durable.recovery"))


@cache
def agent_files() -> CanBuildAgents:
    """Return what builds agents of files; it is loaded with the first file."""
    return cast("CanBuildAgents", import_module("agentloop.agents.agent_builder"))


@cache
def exits() -> CanMaskExits:
    """Return what masks secrets at exits; it is loaded with the first exit."""
    return cast("CanMaskExits", import_module("agentloop.durable.exits"))


@cache
def declarable() -> CanApplyPolicies:
    """Return what applies declared policies; it is loaded for the first tool that declares one."""
    return cast("CanApplyPolicies", import_module("agentloop.policies.resilience.resilience"))


@cache
def answer_checks() -> CanCheckAnswers:
    """Return what checks answers; it is loaded for the first loop with an `output_check`."""
    return cast("CanCheckAnswers", import_module("agentloop.policies.output_checks"))


@cache
def sessions() -> CanKeepSessions:
    """Return what keeps sessions; it is loaded with the first execution of one."""
    return cast("CanKeepSessions", import_module("agentloop.durable.sessions"))
