"""A toolkit for skills: folders with instructions, files and scripts, which a model loads when it needs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_intercept import CanForetellQuestions, CanIntercept
from agentloop.contracts.can_sandbox import DEFAULT_LIMITS, CanSandbox, SandboxFile, SandboxLimits
from agentloop.contracts.tool import ToolContext
from agentloop.errors import ToolFailed
from agentloop.errors.hints import suggest
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.toolkits.files import MayWrite, Protected, protected_folder
from agentloop.toolkits.sandboxes.bubblewrap import BubblewrapSandbox
from agentloop.toolkits.shell import Shell, as_part
from agentloop.toolkits.skill_files import Skill, SkillLock, read_skills
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool
from agentloop.tools.function_tool import FunctionTool
from agentloop.values.points import AroundPoint, BeforeToolUse, Proceed, StatePoint
from agentloop.values.tool_calls import ToolResult, ToolSpec

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)

_NAME = "skills"
_GRACE_SECONDS = 60.0
_MAX_ARGUMENTS = 100
_MAX_APPROVED_CALLS = 10_000
# Inside of all others, so that nothing changes a call after a person has seen it, but outside of `RequireApproval`: the first
# question is the only one, and that of `RequireApproval` does not name the content.
_PRIORITY = -850
_LOAD, _READ, _RUN = "load_skill", "read_skill_file", "run_skill_script"
_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    ".py": ("python3",),
    ".sh": ("/bin/sh",),
    ".bash": ("bash",),
    ".js": ("node",),
    ".mjs": ("node",),
}
_HIDDEN = ".agentloop-skills"

# --- what was approved ----------------------------------------------------------------------------------------------


@define
class SkillApprovals:
    """Which content of skills has been approved, and which calls.

    Attributes:
        lock: the file that keeps the approved content; None when all skills were approved as they were read.
        approved: the approved hashes, by the names of the skills.
        calls: the hash of the skill with which a call was approved, by the key of the call.
    """

    lock: SkillLock | None
    approved: dict[str, str]
    # A dict keeps the order, so that the oldest are dropped first.
    calls: dict[str, str] = field(factory=dict)

    def has(self, skill: Skill) -> bool:
        """Return whether the content of a skill has been approved."""
        return self.approved.get(skill.name) == skill.digest

    def has_call(self, key: str, skill: Skill) -> bool:
        """Return whether a call was approved with the content that a skill has."""
        return self.calls.get(key) == skill.digest

    def approve(self, skill: Skill) -> None:
        """Approve the content of a skill, from now on.

        Raises:
            ConfigurationError: when the lock file cannot be read.
            ToolFailed: when it cannot be written.
        """
        if self.lock is not None:
            self.lock.approve([skill])
        self.approved[skill.name] = skill.digest

    def approve_call(self, key: str, skill: Skill) -> None:
        """Note that a call was approved, by its idempotency key."""
        self.calls[key] = skill.digest
        if len(self.calls) > _MAX_APPROVED_CALLS:
            del self.calls[next(iter(self.calls))]


@frozen
class SkillApproval(CanIntercept, CanForetellQuestions):
    """Suspends calls that use a skill whose content was not approved, and all calls that run a script of one.

    An approval of the call approves the content that the skill has now. A journaled call that was suspended under other content is
    suspended again, because the definition of the tool includes the hashes of all skills.

    Attributes:
        skills: the skills by their names.
        approvals: what was approved.
        content: a hash of all skills, which is the definition of their tools.
    """

    skills: Mapping[str, Skill]
    approvals: SkillApprovals
    content: str

    @property
    def points(self) -> frozenset[str]:
        """Only `before_tool_use`."""
        return frozenset({BeforeToolUse.point_name})

    @property
    def priority(self) -> int:
        """Inside of all others but `RequireApproval`."""
        return _PRIORITY

    @property
    def name(self) -> str:
        """The name in events and errors."""
        return "SkillApproval"

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:  # noqa: ARG002  # an ensemble can be renamed
        """Return True for the tool that runs scripts, None for the others while skills are not approved, and else False."""
        if tool.definition != self.content:
            return False
        is_open = not all(map(self.approvals.has, self.skills.values()))
        return True if "script" in tool.parameters.get("properties", {}) else None if is_open else False

    def handle(self, point: S) -> S:
        """Suspend a call that needs an approval; note the approval of one that has it."""
        # Not by its name: an ensemble and its tools can be renamed.
        if not isinstance(point, BeforeToolUse) or point.tool.definition != self.content:
            return point
        skill = self.skills.get(str(point.arguments.get("skill")))
        reason = "" if skill is None else self._reason(skill, point)
        if skill is None or not reason:
            return point
        if point.decision is not None:
            # The content is approved when the tool runs: in a replay, which has the decision too, it does not.
            self.approvals.approve_call(point.key, skill)
        return point.suspend(reason)

    def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> Awaitable[T]:  # noqa: ARG002  # has no such point
        """Not called: it handles no such point."""
        return proceed()

    def _reason(self, skill: Skill, point: BeforeToolUse) -> str:
        """Return why a call waits; empty when it does not."""
        reasons = []
        if not self.approvals.has(skill):
            change = "has changed since it was approved" if skill.name in self.approvals.approved else "is new"
            reasons.append(f"the skill {skill.name!r} {change}; its content is now {skill.digest}")
        if "script" in point.arguments:
            reasons.append(f"it runs the script {point.arguments['script']!r:.200} of the skill {skill.name!r}")
        return "; ".join(reasons)


# --- the tools ------------------------------------------------------------------------------------------------------


@frozen
class SkillTools:
    """The implementation of the tools.

    Attributes:
        skills: the skills by their names.
        approvals: what was approved.
        shell: runs scripts; None when scripts are not run.
    """

    skills: Mapping[str, Skill]
    approvals: SkillApprovals
    shell: Shell | None

    def load_skill(self, skill: Annotated[str, "the name of the skill"], *, context: ToolContext) -> str:
        """Load the instructions of a skill. Do so before a task that the skill is for."""
        found = self._approved(skill, context)
        others = [path for path in sorted(found.files) if path != "SKILL.md"]
        listing = "\n\nFiles of the skill:\n" + "\n".join(f"- {path}" for path in others) if others else ""
        needs = f"\n\nIt needs: {found.compatibility}" if found.compatibility else ""
        return f"{found.body}{needs}{listing}"

    def read_skill_file(
        self,
        skill: Annotated[str, "the name of the skill"],
        path: Annotated[str, "relative to the folder of the skill, such as references/forms.md"],
        *,
        context: ToolContext,
    ) -> ToolResult:
        """Read a file of a skill."""
        file = self._file(self._approved(skill, context), path)
        part = as_part(path, file.data)
        if part is not None:
            return ToolResult({"path": path, "bytes": len(file.data)}, [part])
        try:
            return ToolResult(file.data.decode())
        except UnicodeDecodeError:
            raise ToolFailed(
                f"{path!r} is neither a text in UTF-8, nor an image, an audio recording or a PDF document"
            ) from None

    async def run_skill_script(
        self,
        skill: Annotated[str, "the name of the skill"],
        script: Annotated[str, "relative to the folder of the skill, such as scripts/fill.py"],
        arguments: Annotated[list[str] | None, "its arguments", Range(max_length=_MAX_ARGUMENTS)] = None,
        stdin: Annotated[str, "its standard input"] = "",
        *,
        context: ToolContext,
    ) -> ToolResult:
        """Run a script of a skill in a sandbox, in the work folder. It has no network, and limited time and memory."""
        found = self._approved(skill, context)
        path = _normalize(script)
        file = self._file(found, path)
        # Only the interceptor of the ensemble knows of decisions; without it no script runs.
        if self.shell is None or not self.approvals.has_call(context.idempotency_key, found):
            raise ToolFailed(
                "scripts run only after their approval: pass the ensemble of skills, not its tools, to an AgentLoop"
            )
        folder = f"{_HIDDEN}/{found.name}"
        borrowed = {f"{folder}/{name}": content for name, content in found.files.items()}
        program = _program_of(path, file)
        return await self.shell.execute(
            [*program, f"./{folder}/{path}", *(arguments or ())],
            stdin=stdin.encode("utf-8", "replace"),
            borrowed=borrowed,
        )

    def _approved(self, name: str, context: ToolContext) -> Skill:
        skill = self.skills.get(name)
        if skill is None:
            raise ToolFailed(f"there is no skill {name!r:.100}{suggest(name, self.skills)}")
        if self.approvals.has(skill):
            return skill
        if not self.approvals.has_call(context.idempotency_key, skill):
            raise ToolFailed(
                f"the content of the skill {name!r} was not approved: pass the ensemble of skills, not its tools, to an AgentLoop"
            )
        self.approvals.approve(skill)
        return skill

    def _file(self, skill: Skill, path: str) -> SandboxFile:
        file = skill.files.get(_normalize(path))
        if file is None:
            raise ToolFailed(f"the skill {skill.name!r} has no file {path!r:.200}{suggest(path, skill.files)}")
        return file


def _normalize(path: str) -> str:
    # The files are in memory: a path that leads elsewhere is the name of no file.
    return path.removeprefix("./")


def _program_of(path: str, file: SandboxFile) -> tuple[str, ...]:
    """Return the program that runs a script; none for one that runs by itself."""
    program = _PROGRAMS.get(Path(path).suffix.lower())
    if program is None and not (file.executable and file.data.startswith((b"#!", b"\x7fELF"))):
        raise ToolFailed(f"{path!r} is no script: it ends with none of {', '.join(_PROGRAMS)} and is not executable")
    return program or ()


def _list_skills(skills: Iterable[Skill], approvals: SkillApprovals) -> str:
    """Return the names and descriptions of skills, for the description of a tool.

    What has not been approved shows its name alone: a description is read by the model in every request.
    """
    lines = [
        f"- {skill.name}: {skill.description if approvals.has(skill) else '(not approved yet; loading it asks the user)'}"
        for skill in skills
    ]
    return "\n".join(lines)


def skills_in(
    sandbox: CanSandbox | None,
    folders: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    lock: str | PathLike[str] | None = None,
    work: str | None = None,
    limits: SandboxLimits = DEFAULT_LIMITS,
    protected: Iterable[str] | None = None,
    may_write: Iterable[str] | None = None,
    executable: bool = False,
) -> Ensemble:
    """Create an ensemble of skills whose scripts run in a sandbox of the program.

    The skills are read once, here. What is not in the lock file, or there with another hash, shows the model its name only, and
    its first use waits for a person's approval, which is written to the lock file. Every call of a script waits for approval.

    Args:
        sandbox: runs scripts; None when scripts are not to be run.
        folders: folders of skills, or folders that have such folders.
        lock: the lock file; None when all skills are approved as they are now.
        work: the folder whose files scripts work on, as those of `shell`; None for an empty one that does not stay.
        limits: the resources that a script may use.
        protected: patterns of paths in `work` that scripts do not write, as for `shell`; the folders of skills and the lock file
            are among them.
        may_write: patterns of protected paths that may be written, as for `shell`.
        executable: whether files that a script makes executable are so in the folder, as for `shell`.

    Raises:
        ConfigurationError: when there are no skills, the lock file is none, something is not a pattern, or PyYAML is not installed.
        InvalidDescriptor: when skills have mistakes; with all of them.
    """
    found = {skill.name: skill for skill in read_skills(folders)}
    file = None if lock is None else SkillLock(Path(lock))
    hashes = {name: skill.digest for name, skill in found.items()}
    approvals = SkillApprovals(file, hashes if file is None else file.read())
    shell = None
    if sandbox is not None:
        own = [str(skill.folder.resolve()) for skill in found.values()] + (
            [] if lock is None else [os.path.realpath(lock)]
        )
        folder = None if work is None else protected_folder(work, [*(protected or ()), *own], may_write)
        shell = Shell(folder, sandbox, limits, executable=executable)
    toolkit = SkillTools(found, approvals, shell)
    listing = _list_skills(found.values(), approvals)
    load = tool(
        effect="pure",
        description=f"Load the instructions of a skill. Do so before a task that the skill is for. The skills:\n{listing}",
    )(toolkit.load_skill)
    tools: list[FunctionTool[..., Any]] = [load, tool(effect="pure")(toolkit.read_skill_file)]
    if sandbox is not None:
        timeout = limits.max_seconds + _GRACE_SECONDS
        tools.append(
            tool(effect="effect", sequential=True, timeout=timeout, repeatable=True, runs_code=True)(
                toolkit.run_skill_script
            )
        )
    # A call that waits for a decision waits again when the content of a skill is another one by then.
    content = f"sha256:{hashlib.sha256(''.join(sorted(hashes.values())).encode()).hexdigest()}"
    return Ensemble(
        _NAME,
        [evolve(tool, definition=content) for tool in tools],
        interceptors=[SkillApproval(found, approvals, content)],
        description=f"{len(found)} skills: {', '.join(found)}."[:500],
    )


@ensemble_factory(in_folder=["folders", "lock", "work"], trusted=["may_write", "executable"], takes_files="protected")
def skills(
    folders: Annotated[list[str], "folders of skills, or folders that have such folders", Range(min_length=1)],
    *,
    lock: Annotated[str | None, "the lock file; without one all skills are approved as they are"] = None,
    scripts: Annotated[bool, "whether scripts may be run, each after its approval"] = False,
    work: Annotated[str | None, "the folder whose files scripts work on"] = None,
    protected: Protected = None,
    may_write: MayWrite = None,
    executable: bool = False,
) -> Ensemble:
    """Create an ensemble of skills, whose scripts run in a `BubblewrapSandbox`.

    Args:
        folders: folders of skills, or folders that have such folders.
        lock: the lock file; None when all skills are approved as they are now.
        scripts: whether scripts may be run, each after its approval.
        work: the folder whose files scripts work on.
        protected: patterns of paths in `work` that scripts do not write, as for `shell`; the folders of skills and the lock file
            are among them.
        may_write: patterns of protected paths that may be written; only code and persons set it.
        executable: whether files that a script makes executable are so in the folder; only code and persons set it.

    Raises:
        ConfigurationError: when there are no skills, the lock file is none, or something is not a pattern.
        InvalidDescriptor: when skills have mistakes; with all of them.
        SandboxUnavailable: when scripts may be run, and bubblewrap is not installed.
    """
    return skills_in(
        BubblewrapSandbox() if scripts else None,
        folders,
        lock=lock,
        work=work,
        protected=protected,
        may_write=may_write,
        executable=executable,
    )
