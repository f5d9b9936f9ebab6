"""The statements of files about tools, compared with the word of code and of persons.

A file may come from a stranger. Its statements make a tool stricter; the loader refuses the others, unless a program or a person
trusts the file: then the statements count as theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.tool import Tool, ToolPolicy
from agentloop.toolkits.descriptor import DEDUPLICATOR, Descriptor, policy_values, retries_of
from agentloop.toolkits.overrides import OF_SPEC, ToolOverride
from agentloop.toolkits.source_files import LocatedValue, Mistake
from agentloop.values.authority import DECLARED, Authority, Declarations, Statement, is_looser
from agentloop.values.policies import CachePolicy, CircuitPolicy, DeduplicatePolicy, RateLimit, RetryPolicy
from agentloop.values.tool_calls import Effect, as_decides, as_egress, as_identifiers, as_own
from agentloop.values.value import Value

# --- trust ----------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class Trust(Value):
    """The files whose statements count as the word of a program, or of a person.

    Attributes:
        by: the program or the person.
        files: the files, resolved; None for every file.
    """

    by: Authority = Authority.CODE
    files: frozenset[Path] | None = frozenset()

    @classmethod
    def of(cls, trust: TrustLike, by: Authority = Authority.CODE) -> Trust:
        """Read an argument of a program.

        Args:
            trust: whether to trust every file, or a list of files.
            by: the speaker of the statements of trusted files.

        Raises:
            TypeError: it is neither a bool nor a list of paths.
        """
        if isinstance(trust, Trust):
            return trust
        if isinstance(trust, bool):
            return cls(by, None if trust else frozenset())
        if isinstance(trust, str | PathLike):
            raise TypeError(f"trust is True or a list of files: write trust=[{fspath(trust)!r}]")
        return cls(by, frozenset([Path(file).resolve() for file in trust]))

    def covers(self, file: Path) -> bool:
        """Return whether the statements of a file count."""
        try:
            return self.files is None or file.resolve() in self.files
        except (OSError, RuntimeError, ValueError):  # a link that leads to itself, or a null byte
            return False

    def authority_of(self, file: Path) -> Authority:
        """Return the speaker of the statements of a file."""
        return self.by if self.covers(file) else Authority.FILE


TrustLike: TypeAlias = bool | Iterable[str | PathLike[str]] | Trust
"""Whether a program trusts the statements of files, or a list of the files that it trusts."""

# --- limits ---------------------------------------------------------------------------------------------------------


def _deduplicates_less(new: DeduplicatePolicy, old: DeduplicatePolicy | None) -> bool:
    return old is not None and new != old


def _limits_less(new: RateLimit, old: RateLimit | None) -> bool:
    if old is None:
        return False
    bursts = [limit.calls if limit.burst is None else limit.burst for limit in (new, old)]
    waits = [inf if limit.max_wait is None else limit.max_wait for limit in (new, old)]
    is_faster = new.calls / new.per > old.calls / old.per or bursts[0] > bursts[1] or waits[0] > waits[1]
    return is_faster or new.by != old.by


def _repeats_more(new: RetryPolicy, old: RetryPolicy | None) -> bool:
    if old is None or new.max_attempts == 1:
        return new.max_attempts > 1
    is_narrower = not old.on or (bool(new.on) and {*new.on} <= {*old.on})
    return new.max_attempts > old.max_attempts or not is_narrower or not {*old.not_on} <= {*new.not_on}


def _reuses_less(new: CachePolicy, old: CachePolicy | None) -> bool:
    return old is not None and (new.seconds < old.seconds or new.max_entries < old.max_entries)


def _breaks_later(new: CircuitPolicy, old: CircuitPolicy | None) -> bool:
    if old is None:
        return False
    is_later = new.failures > old.failures or new.seconds < old.seconds or new.probes > old.probes
    return is_later or new.dependency != old.dependency


def _runs_again(new: bool, old: bool | None) -> bool:  # noqa: FBT001  # values of a policy, as the others
    return new and not old


def _orders_less(new: object, old: object) -> bool:
    return old is not None and new != old


_LIMITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "deduplicate": _deduplicates_less,
    "rate_limit": _limits_less,
    "circuit": _breaks_later,
    "cache": _reuses_less,
    "retry": _repeats_more,
    "repeatable": _runs_again,
    "key": _orders_less,
}
"""The values of a policy that keep calls from running, or from running again, each with a function that compares a new one with the
one that holds without it."""
_OF_EFFECTS: Final = frozenset({"retry", "repeatable", "cache"})
"""The limits among them of tools with an effect alone: the calls of other tools may run again."""
_EXEMPTIONS: Final = ("cache", "deduplicate", DEDUPLICATOR, "repeatable")
"""The values by which an equal call of an effect may run directly after one that has succeeded."""

# --- statements of files -------------------------------------------------------------------------------------------------


def chain_of(located: LocatedValue) -> Iterator[LocatedValue]:
    """Yield the values of a key in the files that name each other, the innermost file first."""
    if located.under is not None:
        yield from chain_of(located.under)
    yield located


def place_of(located: LocatedValue) -> str:
    """Return where a value stands, in words."""
    file, _, line, _ = located.mistake("")
    return f"{file}, line {line}" if line else file


@define
class FileStatements:
    """Compares the statements of files with the word of code and persons, and notes each statement that is looser.

    Attributes:
        trust: the files whose statements count as the word of a program or a person.
        mistakes: the mistakes found so far.
    """

    trust: Trust
    mistakes: list[Mistake] = field(factory=list)

    def may_loosen(self, located: LocatedValue) -> bool:
        """Return whether a value is the word of code or of a person."""
        return self.trust.authority_of(located.file.path).may_loosen

    def refuse(self, located: LocatedValue, problem: str, remedy: str, *keys: str | int) -> None:
        """Note that a file makes a statement that only code or a person may make.

        Args:
            located: the value.
            problem: the harm, as a sentence.
            remedy: the way for code to say it, as the end of "If that is meant, …"; may be empty.
            *keys: the keys inside of the value, if the problem is about a part of it.
        """
        how = f"{remedy}, or trust the file" if remedy else "trust the file"
        self.mistakes.append(
            located.mistake(
                f"{problem}: a file can make tools stricter, not looser. If that is meant, {how} (`trust` where a program loads "
                f"it, --trust {located.file.path} on the command line)",
                *keys,
            )
        )

    def declare(self, said: Declarations, values: Mapping[str, Iterable[LocatedValue]]) -> Declarations:
        """Return the declarations of a tool with the statements of files.

        Args:
            said: the declarations of code.
            values: the values of the files, by key; of each key, the value of the innermost file first.
        """
        for about in DECLARED:
            for located in values.get(about, ()):
                said = self._declare(said, about, located)
        return said

    def _values(self, general: Mapping[str, LocatedValue], own: Mapping[str, LocatedValue]) -> _Values:
        """Return the values of each key, of which the last one is nearest to the tool.

        Args:
            general: the values for all tools of the ensemble.
            own: the values for the tool; they replace general ones, unless these are the word of somebody who is trusted.
        """
        values = {key: tuple(chain_of(located)) for key, located in own.items()}
        for key, located in general.items():
            kept = [each for each in chain_of(located) if key not in own or self.may_loosen(each)]
            values[key] = (*kept, *values.get(key, ()))
        return values

    def _declare(self, said: Declarations, about: str, located: LocatedValue) -> Declarations:
        value = _READ.get(about, _as_it_is)(located.value)
        statement = Statement(about, value, self.trust.authority_of(located.file.path), place_of(located))
        held = said.holding(about)
        if statement.by.may_loosen:
            return said.replaced_by(statement)
        if is_looser(about, value, held.value):
            shown, other = _show(value), _show(held.value)
            problem = f"the file says {about} = {shown}, and {held.speaker} says {other}"
            self.refuse(located, problem, f"say it in code, as in @tool({about}={shown})")
            return said
        return said.plus(statement)

    def override(
        self, ensemble: Descriptor, entry: Descriptor | None, by_code: ToolOverride, coded: Tool
    ) -> ToolOverride:
        """Return the override of code with the statements of files about a tool and its policy.

        Args:
            ensemble: the descriptor of the ensemble.
            entry: the descriptor of the tool; None if it has none.
            by_code: the override of code.
            coded: the tool as code configures it.
        """
        # The word of code about one tool is nearer than the word of a file about all tools.
        general = {key: value for key, value in ensemble.values.items() if key not in by_code.policy}
        values = self._values(general, {} if entry is None else entry.values)
        said = self.declare(coded.declarations, values)
        held = {about: said.holding(about).value for about in DECLARED if about in values}
        effect = said.holding("effect").value
        own = {} if entry is None else {**retries_of(ensemble, entry, effect), **entry.policy}
        self._check_limits(coded.policy, effect, values)
        kept = self._kept_from_repeating(coded.policy, values)
        if not held and not own and not kept:
            return by_code
        policy = {name: value for name, value in held.items() if name not in OF_SPEC}
        return evolve(
            by_code,
            **{name: value for name, value in held.items() if name in OF_SPEC},
            policy={**by_code.policy, **kept, **own, **policy},
            declarations=said if held else by_code.declarations,
        )

    def _check_limits(self, policy: ToolPolicy, effect: Effect, values: _Values) -> None:
        """Check the values of a policy that keep calls from running, or from running again.

        Args:
            policy: the policy of the tool, as code declares it.
            effect: the effect of the tool.
            values: the values of the files, by key.
        """
        for name, is_less in _LIMITS.items():
            if name in _OF_EFFECTS and effect is not Effect.EFFECT:
                continue
            held = word = getattr(policy, name)
            for located in values.get(name, ()):
                value = _limit(name, located.value)
                if self.may_loosen(located):
                    held = word = value
                elif is_less(value, held):
                    self._refuse_limit(located, name)
                else:
                    held = value
            # The name of a deduplicator is known in the last file only; it decides within the limits of `deduplicate`.
            for located in values.get(DEDUPLICATOR, ())[-1:] if name == "deduplicate" else ():
                value = evolve(held or DeduplicatePolicy(), by=located.value)
                if not self.may_loosen(located) and is_less(value, word):
                    self._refuse_limit(located, name)

    def _refuse_limit(self, located: LocatedValue, name: str) -> None:
        reason = "a call that failed may have had its effect" if name == "retry" else "code or a person limits the tool"
        self.refuse(located, f"{name} lets calls run that would not run without the file, and {reason}", "")

    def _kept_from_repeating(self, policy: ToolPolicy, values: _Values) -> dict[str, Any]:
        """Return the value of a policy that keeps an equal call of an effect from running directly again.

        A cache and deduplication say which calls are the same. In a file, they make a tool stricter as long as this rule holds as well.
        """
        stated = [located for key in _EXEMPTIONS for located in values.get(key, ())]
        if not stated or policy.may_repeat or any(map(self.may_loosen, stated)):
            return {}
        return {"repeatable": False}

    def is_enabled(self, located: LocatedValue | None, *, by_code: bool, what: str) -> bool:
        """Return whether a tool or an ensemble is enabled.

        Args:
            located: the value of a file; None where it says nothing.
            by_code: whether code enables it.
            what: the tool or the ensemble, in words.
        """
        enabled = by_code
        for each in () if located is None else chain_of(located):
            if each.value and not enabled and not self.may_loosen(each):
                self.refuse(each, f"the file enables {what}, which code or another file has disabled", "")
            enabled = bool(each.value)
        return enabled

    def replaces_schema(self, schema: LocatedValue) -> bool:
        """Return whether a file has the say about the schema of a tool; note a schema of somebody who is trusted that it replaces."""
        *earlier, last = chain_of(schema)
        if self.may_loosen(last):
            return True
        if any(map(self.may_loosen, earlier)):
            self.refuse(last, "the file replaces the schema of a file that is trusted", "")
        return False

    def check_options(
        self, options: LocatedValue, in_folder: Iterable[str], trusted: Iterable[str]
    ) -> Iterator[Statement]:
        """Check the options of a group that decide which things its tools reach; yield the statements about them.

        Args:
            options: the options.
            in_folder: the names of options that are paths, or lists of paths.
            trusted: the names of options that only code and persons may set.
        """
        by = self.trust.authority_of(options.file.path)
        for name in (*in_folder, *trusted):
            value = options.value.get(name)
            if value is None or value == []:
                continue
            yield Statement(name, value, by, place_of(options.at(name)))
            if by.may_loosen:
                continue
            if name not in in_folder:
                self.refuse(options, f"only code or a person may set {name!r}", "set it in code", name)
                continue
            for path in [value] if isinstance(value, str) else value:
                if not is_in_folder_of(path, options.file.path):
                    problem = f"{path!r} is outside of the folder of the file, {options.file.path.resolve().parent}"
                    self.refuse(options, problem, "name it in code", name)


_Values: TypeAlias = Mapping[str, Sequence[LocatedValue]]
"""The values of files about a tool, by key; of each key, the value of the innermost file first."""


def _limit(name: str, value: Any) -> Any:
    """Return a value of a policy as the policy has it, so that `exact` and a table can be compared."""
    return getattr(ToolPolicy(**policy_values({name: value})), name)


def _as_it_is(value: Any) -> Any:
    return value


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "effect": Effect,
    "egress": as_egress,
    "own": as_own,
    "identifiers": as_identifiers,
    "decides": as_decides,
}


def _show(value: object) -> str:
    """Return a value as code writes it."""
    if isinstance(value, tuple):
        return repr(" ".join(map(str, value)))
    return repr(value.value) if isinstance(value, Effect) else repr(value)


def is_in_folder_of(path: str, file: Path) -> bool:
    """Return whether a path, relative to the working folder as the groups take it, is in the folder of a file or below."""
    try:
        return Path(path).resolve().is_relative_to(file.resolve().parent)
    except (OSError, ValueError, RuntimeError):  # a null byte, or links that lead to each other
        return False
