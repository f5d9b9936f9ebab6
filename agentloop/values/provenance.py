"""Who changed what: changes of interceptors as data, and the account of them that a state holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from typing import Final

from attrs import frozen

from agentloop.values.json import JsonObject, JsonValue, format_json, freeze_object
from agentloop.values.reprs import whole_repr
from agentloop.values.value import Value, check_types

PROVENANCE: Final = "agentloop.provenance"
"""The owner of the account among the extensions of a state."""
_MAX_CHANGES = 1_000
_MAX_TEXT = 1_000


class Provenance(StrEnum):
    """What is recorded of a change of an interceptor.

    `NONE` records nothing, `DIGESTS` the path with digests of the values, and `VALUES` the values, if they are not too long.
    What an interceptor replaces, such as a secret that it masks, is then in the state and the journal, too. A digest hides a
    value only as far as the value cannot be guessed.
    """

    NONE = "none"
    DIGESTS = "digests"
    VALUES = "values"


@frozen(eq=False, repr=False)
class FieldChange(Value):
    """A change of one field.

    Attributes:
        path: the path of the field, such as `request.system_prompt` or `state.context.metadata.user`.
        before: the value before, as JSON if it is JSON and else as its repr, or the digest of that; None if there was no value,
            and empty if values are not recorded.
        after: the value after, in the same form.
    """

    path: str
    before: str | None = ""
    after: str | None = ""

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class InterceptorWrite(Value):
    """A change that an interceptor made in an execution.

    Attributes:
        interceptor: the name of the interceptor.
        point: the name of the point.
        steps: the number of steps in the state at that moment.
        change: the change.
    """

    interceptor: str
    point: str
    steps: int
    change: FieldChange

    __attrs_post_init__ = check_types

    def __str__(self) -> str:
        shown = f"after step {self.steps}" if self.steps else "at the start"
        line = f"{self.change.path}: {self.interceptor} at {self.point}, {shown}"
        if self.change.before == self.change.after == "":
            return line
        return f"{line}: {_shown(self.change.before)} -> {_shown(self.change.after)}"


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


_MAX_SHOWN = 60


def render_change(value: object, form: Provenance) -> str:
    """Return a value as text for the account: whole, as a digest, or empty."""
    if form is Provenance.NONE:
        return ""
    text = _render(value)
    if form is Provenance.VALUES and len(text) <= _MAX_TEXT:
        return text
    return f"sha256:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]} ({len(text):,} characters)"


def _render(value: object) -> str:
    """Return a value as JSON, or else as its whole repr; the text of an equal value is equal in every process."""
    if value is None or isinstance(value, bool | int | float | str | Mapping | tuple):
        # A tuple may hold parts of messages, and a number may be infinite.
        with suppress(TypeError, ValueError):
            return format_json(value).decode("utf-8", "replace")
    kind = type(value)
    try:
        if isinstance(value, BaseException):
            return f"{kind.__name__}: {value}"
        # An address in memory is not part of the value.
        return f"<{kind.__qualname__}>" if kind.__repr__ is object.__repr__ else whole_repr(value)
    except Exception:  # noqa: BLE001  # code of others, which must not change what it describes
        return f"<{kind.__qualname__}>"


def add_writes(
    account: JsonValue,
    execution_id: str,
    writes: Iterable[InterceptorWrite],
) -> JsonObject:
    """Return an account with more changes; the account of another execution is replaced.

    Args:
        account: the account as JSON; None to begin one.
        execution_id: the execution.
        writes: the changes, in order. If there are too many, the oldest are dropped and counted.
    """
    earlier, dropped = _entries(account, execution_id)
    entries = (*earlier, *[_entry(write) for write in writes])
    excess = max(len(entries) - _MAX_CHANGES, 0)
    return freeze_object({"execution": execution_id, "dropped": dropped + excess, "changes": entries[excess:]})


def _entry(write: InterceptorWrite) -> JsonObject:
    change = write.change
    values = {"before": change.before, "after": change.after} if (change.before, change.after) != ("", "") else {}
    place = {"interceptor": write.interceptor, "point": write.point, "steps": write.steps, "path": change.path}
    return freeze_object({**place, **values})


def _entries(account: JsonValue, execution_id: str) -> tuple[Sequence[JsonValue], int]:
    """Return the changes of an account and the number of those that were dropped; none if it is that of another execution."""
    if not isinstance(account, Mapping) or account.get("execution") != execution_id:
        return (), 0
    changes, dropped = account.get("changes"), account.get("dropped")
    return changes if isinstance(changes, tuple) else (), dropped if isinstance(dropped, int) else 0


def read_writes(account: JsonValue, execution_id: str, *, after: int = 0) -> tuple[InterceptorWrite, ...]:
    """Return the changes in an account of this execution, in order; entries that other code wrote in another form are left out.

    Args:
        account: the account as JSON.
        execution_id: the execution.
        after: the number of changes to skip, with those that were dropped; see `count_writes`.
    """
    entries, dropped = _entries(account, execution_id)
    return tuple([write for entry in entries[max(after - dropped, 0) :] if (write := _write(entry)) is not None])


def count_writes(account: JsonValue, execution_id: str) -> int:
    """Return the number of changes in an account of this execution, with those that were dropped."""
    entries, dropped = _entries(account, execution_id)
    return len(entries) + dropped


def _write(entry: JsonValue) -> InterceptorWrite | None:
    if not isinstance(entry, Mapping):
        return None
    interceptor, point, steps, path = (entry.get(name) for name in ("interceptor", "point", "steps", "path"))
    before, after = entry.get("before", ""), entry.get("after", "")
    if isinstance(interceptor, str) and isinstance(point, str) and isinstance(steps, int) and isinstance(path, str):
        texts = [text if isinstance(text, str) else None for text in (before, after)]
        return InterceptorWrite(interceptor, point, steps, FieldChange(path, *texts))
    return None


def explain_writes(account: JsonValue, execution_id: str) -> list[str]:
    """Return the account of an execution as lines for people."""
    writes, (_, dropped) = read_writes(account, execution_id), _entries(account, execution_id)
    if not writes:
        return ["  no change of an interceptor was recorded"]
    lines = [f"  {dropped:,} earlier changes were dropped"] if dropped else []
    return ["  changes by interceptors:", *lines, *[f"    {write}" for write in writes]]
