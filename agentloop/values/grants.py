"""Grants: what a person has allowed for later calls of a tool, within limits, and what calls have used of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal
from operator import ge, gt, le, lt

from attrs import evolve, field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.values.json import JsonObject, JsonValue, format_json, parse_json
from agentloop.values.value import Value

_LIMIT = re.compile(r"\s*(\S+?)(?:\s*(==|<=|>=|<|>)\s*|\s+(in)\s*(?=\[))(.+?)\s*", re.DOTALL)
_ORDERS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}
_EXACT = Context(prec=1_000)
"""Adds amounts without rounding: a sum of small ones must not be lost beside a large one."""
_MAX_BITS = 1_000
"""The size of an integer that can be an amount."""
_MAX_CHARACTERS, _MAX_LIMITS = 10_000, 100
_FORMS = 'write it as in amount <= 50, to == "ada" or to in ["ada", "ben"], with JSON on the right side'


@frozen(eq=False, repr=False)
class _Limit(Value):
    """A comparison of one argument with JSON data.

    Attributes:
        path: the name of the argument, or its path, such as `payment/amount`.
        comparison: `==`, `in`, `<=`, `>=`, `<` or `>`.
        operand: a text, number, bool or null; a list of them for `in`.
    """

    path: str
    comparison: str
    operand: JsonValue

    @classmethod
    def parse(cls, text: object) -> _Limit:
        if isinstance(text, str) and len(text) > _MAX_CHARACTERS:
            raise InvalidParameter(f"a limit of an argument has up to {_MAX_CHARACTERS:,} characters: {text!r:.200}")
        match = _LIMIT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidParameter(f"{text!r:.200} is not a limit of an argument; {_FORMS}")
        path, order, is_in, written = match.groups()
        comparison = order or is_in
        try:
            operand = parse_json(written)
        except ValueError as error:
            raise InvalidParameter(f"the limit {text!r:.200} ends with something that is not JSON; {_FORMS}") from error
        listed = operand if comparison == "in" and isinstance(operand, list) else [operand]
        is_list = isinstance(operand, list)
        needs_number = comparison in _ORDERS
        if is_list != (comparison == "in") or any(isinstance(each, list | dict) for each in listed):
            raise InvalidParameter(
                f"the limit {text!r:.200} compares with one value, or with a list after `in`; {_FORMS}"
            )
        if needs_number and as_amount(operand) is None:
            raise InvalidParameter(f"the limit {text!r:.200} compares with a number; {_FORMS}")
        return cls(path, comparison, tuple(listed) if is_list else operand)

    @property
    def amount(self) -> Decimal | None:
        """The operand as a number; None if it is none."""
        return as_amount(self.operand)

    def allows(self, arguments: JsonObject) -> bool:
        """Return whether a call has the argument, and the argument is within the limit."""
        found = _find(arguments, self.path)
        if found is None:
            return False
        (value,) = found
        if self.comparison == "==":
            return _is_same(value, self.operand)
        if self.comparison == "in":
            return isinstance(self.operand, tuple) and any(_is_same(value, each) for each in self.operand)
        left, right = as_amount(value), self.amount
        return left is not None and right is not None and _ORDERS[self.comparison](left, right)

    def __str__(self) -> str:
        return f"{self.path} {self.comparison} {format_json(self.operand).decode('utf-8', 'surrogatepass')}"


def as_amount(value: JsonValue) -> Decimal | None:
    """Return a JSON number as the decimal number that is written; None for anything else. `true` is a bool, and not 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return Decimal(value) if value.bit_length() <= _MAX_BITS else None
    amount = Decimal(repr(value))
    return amount if amount.is_finite() else None


def _sum(*amounts: Decimal | str) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _EXACT.add(total, Decimal(amount))
    return total


def _find(arguments: JsonValue, path: str) -> tuple[JsonValue] | None:
    """Return what is at a path, in a tuple; None if nothing is."""
    for name in path.split("/"):
        if not isinstance(arguments, Mapping) or name not in arguments:
            return None
        arguments = arguments[name]
    return (arguments,)


def _is_same(left: JsonValue, right: JsonValue) -> bool:
    """Return whether two simple JSON values are equal. To Python, `true` and 1 are, too."""
    first, second = as_amount(left), as_amount(right)
    if first is not None or second is not None:
        return first == second
    return type(left) is type(right) and left == right


def _as_limits(limits: object) -> tuple[str, ...]:
    texts = [limits] if isinstance(limits, str) else limits
    if not isinstance(texts, list | tuple):
        raise InvalidParameter(f"the limits of arguments are a list of texts, not {limits!r:.200}; {_FORMS}")
    if len(texts) > _MAX_LIMITS:
        raise InvalidParameter(f"a grant has up to {_MAX_LIMITS} limits of arguments, not {len(texts):,}")
    return tuple([str(_Limit.parse(text)) for text in texts])


def _as_total(text: object) -> str:
    if text is None or text == "":
        return ""
    limit = _Limit.parse(text)
    if limit.comparison != "<=" or limit.amount is None or limit.amount < 0:
        raise InvalidParameter(f"the total {text!r:.200} names an argument and the largest sum, as in amount <= 500")
    return str(limit)


@frozen(eq=False, repr=False, kw_only=True)
class Grant(Value):
    """What a person allows with the approval of a call: later calls of the same tool run without a question, within these limits.

    It is data. Each limit compares one argument with JSON: `amount <= 50`, `to in ["ada", "ben"]`, `currency == "EUR"`; the comparisons
    are `==`, `in`, `<=`, `>=`, `<` and `>`. A call that leaves such an argument out is not covered. Arguments without a limit may
    have any value.

        decision = approve(call.digest, grant=Grant(arguments=["amount <= 50"], uses=10, total="amount <= 300"))

    Attributes:
        arguments: limits on the arguments; a nested argument is named by its path, such as `payment/amount`.
        uses: how many calls may use the grant; None for any number.
        total: the largest sum of a numeric argument over all these calls, as in `amount <= 500`; empty for none. Calls without this
            argument, or with a negative number, are not covered.
        until: when the grant ends, a time with a time zone; None for no end.
        untrusted: whether it also holds for calls about which somebody else may have decided, or whose limited arguments somebody else
            may have written, see `AskUntrusted`: the limits are then all that stands between a text that the model has read and the call.

    Raises:
        InvalidParameter: a limit cannot be read, or is longer than 10,000 characters; there are more than 100; `uses` is not a
            whole number above 0; or the time has no time zone.
    """

    arguments: tuple[str, ...] = field(default=(), converter=_as_limits)
    uses: int | None = None
    total: str = field(default="", converter=_as_total)
    until: datetime | None = None
    untrusted: bool = False

    def __attrs_post_init__(self) -> None:
        uses: object = self.uses
        if uses is not None and (type(uses) is not int or uses < 1):
            raise InvalidParameter(
                f"the uses of a grant are a whole number above 0, or None for any number; not {uses!r:.100}"
            )
        until: object = self.until
        if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
            raise InvalidParameter(f"the end of a grant is a time with a time zone, not {until!r:.100}")

    def covers(self, arguments: JsonObject, now: datetime) -> bool:
        """Return whether a call with these arguments is within the limits, leaving aside what other calls have used."""
        in_time = self.until is None or now < self.until
        return (
            in_time
            and self.amount_of(arguments) is not None
            and all(_Limit.parse(text).allows(arguments) for text in self.arguments)
        )

    def amount_of(self, arguments: JsonObject) -> Decimal | None:
        """Return what a call adds to the total; None if the grant has a total and cannot count the call. Zero without a total."""
        if not self.total:
            return Decimal(0)
        found = _find(arguments, _Limit.parse(self.total).path)
        amount = None if found is None else as_amount(found[0])
        return None if amount is None or amount < 0 else amount

    @property
    def limited(self) -> frozenset[str]:
        """The names of the arguments that it limits."""
        paths = [_Limit.parse(text).path for text in (*self.arguments, self.total) if text]
        return frozenset([*paths, *[path.partition("/")[0] for path in paths]])

    @property
    def largest_total(self) -> Decimal | None:
        """The largest sum; None without a total."""
        return _Limit.parse(self.total).amount if self.total else None

    def __str__(self) -> str:
        parts = [*self.arguments]
        parts += [] if self.uses is None else [f"{self.uses} {'use' if self.uses == 1 else 'uses'}"]
        parts += [f"in all {self.total}"] if self.total else []
        parts += ["also where others may have decided"] if self.untrusted else []
        parts += [] if self.until is None else [f"until {self.until.astimezone(UTC).isoformat(timespec='seconds')}"]
        return ", ".join(parts) or "any call"


# --- what is stored ---------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False, kw_only=True)
class GrantUse(Value):
    """A call that uses a grant, or is about to.

    Attributes:
        grant_id: the grant.
        key: the idempotency key of the call.
        amount: what it adds to the total, as a decimal number.
        execution_id: the execution of the call.
        token: the token of the claim under which the call was let through; a later one of the same execution replaces it.
        at: when it was let through.
    """

    grant_id: str
    key: str
    amount: str = "0"
    execution_id: str = ""
    token: int = 0
    at: datetime

    def count_in(self, state: GrantState) -> GrantState:
        """Return the state of its grant after the call has begun; see `GrantState.use`."""
        return state.use(self.key)

    def drop_from(self, state: GrantState) -> GrantState:
        """Return the state of its grant without this very use, whose execution runs no more."""
        return evolve(state, holds=[each for each in state.holds if each != self])


@frozen(eq=False, repr=False, kw_only=True)
class GrantState(Value):
    """A grant as it is stored: for which calls it holds, and what they have used of it.

    Attributes:
        id: identifies the grant in its journal.
        grant: its limits.
        tool: the name of the tool.
        definition: the digest of the tool's definition: name, description, parameters, effect and group. A tool with another
            definition is another tool to the grant.
        owner: whose calls may use it; empty for those of executions for which nobody is known to have asked.
        by: who gave it; empty when that is unknown.
        key: the idempotency key of the call with whose approval it was given.
        given_at: when it was given.
        used: how many calls have used it.
        spent: the sum of the amounts of these calls, as a decimal number.
        holds: the calls that were let through and have not begun.
        last_key: the key of the latest call that has used it; empty before the first.
        last_used_at: when that call was let through; None before the first.
        revoked_at: when it was revoked; None if it was not.
        revoked_by: who revoked it.
    """

    id: str
    grant: Grant
    tool: str
    definition: str
    owner: str = ""
    by: str = ""
    key: str = ""
    given_at: datetime
    used: int = 0
    spent: str = "0"
    holds: tuple[GrantUse, ...] = field(default=(), converter=tuple[GrantUse, ...])
    last_key: str = ""
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""

    def status(self, now: datetime) -> str:
        """Return `active`, or why no further call can use it: `revoked`, `expired` or `used up`."""
        if self.revoked_at is not None:
            return "revoked"
        if self.grant.until is not None and now >= self.grant.until:
            return "expired"
        is_used_up = self.remaining_uses == 0 or (self.remaining_total is not None and self.remaining_total <= 0)
        return "used up" if is_used_up else "active"

    @property
    def remaining_uses(self) -> int | None:
        """How many more calls may use it, leaving aside those that are held; None for any number."""
        return None if self.grant.uses is None else max(self.grant.uses - self.used, 0)

    @property
    def remaining_total(self) -> Decimal | None:
        """What is left of the total, leaving aside the calls that are held; None without a total."""
        largest = self.grant.largest_total
        return None if largest is None else _EXACT.subtract(largest, Decimal(self.spent))

    def holds_for(self, key: str) -> bool:
        """Return whether a call was let through and has not begun."""
        return any(use.key == key for use in self.holds)

    def hold(self, use: GrantUse, arguments: JsonObject, now: datetime) -> GrantState:
        """Return the state with a call that is let through if the grant covers it and has room for it; else without it.

        Args:
            use: the call; it replaces an earlier one of the same key.
            arguments: its arguments.
            now: the time.
        """
        state = self.drop_earlier(use.execution_id, use.token).release(use.key)
        if state.revoked_at is not None or not state.grant.covers(arguments, now) or not state.has_room_for(use):
            return state
        return evolve(state, holds=[*state.holds, use])

    def has_room_for(self, use: GrantUse) -> bool:
        """Return whether one more call of this amount fits into the uses and the total, beside the calls that are held."""
        uses, total = self.grant.uses, self.grant.largest_total
        held = [each.amount for each in self.holds]
        fits = total is None or _sum(self.spent, use.amount, *held) <= total
        return fits and (uses is None or self.used + len(self.holds) < uses)

    def use(self, key: str) -> GrantState:
        """Return the state after a call that was let through has begun; the same state if it is not let through, or was counted."""
        for use in self.holds:
            if use.key == key:
                spent = str(_sum(self.spent, use.amount))
                used = evolve(self.release(key), used=self.used + 1, spent=spent)
                return evolve(used, last_key=key, last_used_at=use.at)
        return self

    def release(self, key: str) -> GrantState:
        """Return the state without a call that was let through and does not begin."""
        return evolve(self, holds=[use for use in self.holds if use.key != key]) if self.holds_for(key) else self

    def drop_earlier(self, execution_id: str, token: int) -> GrantState:
        """Return the state without the calls that an earlier process has let through for an execution; that process is fenced off.

        Args:
            execution_id: the execution.
            token: the token of the claim under which the execution runs now.
        """
        kept = [use for use in self.holds if use.execution_id != execution_id or use.token >= token]
        return self if len(kept) == len(self.holds) else evolve(self, holds=kept)

    def revoke(self, at: datetime, by: str = "") -> GrantState:
        """Return the state in which no further call can use it; revoking it again changes nothing."""
        return self if self.revoked_at is not None else evolve(self, revoked_at=at, revoked_by=by)


def describe_grant(state: GrantState, now: datetime) -> dict[str, object]:
    """Return a grant as plain JSON data for people and programs.

    Args:
        state: the grant.
        now: the time at which it is described.
    """
    grant, left = state.grant, state.remaining_total
    return {
        "id": state.id,
        "tool": state.tool,
        "definition": state.definition,
        "owner": state.owner,
        "by": state.by,
        "key": state.key,
        "given_at": state.given_at.isoformat(),
        "arguments": list(grant.arguments),
        "uses": grant.uses,
        "total": grant.total,
        "until": None if grant.until is None else grant.until.isoformat(),
        "status": state.status(now),
        "used": state.used,
        "spent": state.spent,
        "remaining_uses": state.remaining_uses,
        "remaining_total": None if left is None else str(left),
        "held": [use.key for use in state.holds],
        "last_key": state.last_key,
        "last_used_at": None if state.last_used_at is None else state.last_used_at.isoformat(),
        "revoked_at": None if state.revoked_at is None else state.revoked_at.isoformat(),
        "revoked_by": state.revoked_by,
    }
