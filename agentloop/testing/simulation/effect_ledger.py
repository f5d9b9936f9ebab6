"""The ledger of a simulation: what tools really did."""

from __future__ import annotations

from collections import Counter

from attrs import define, field


@define(eq=False)
class EffectLedger:
    """What tools really did, whatever anybody has recorded of it.

    Attributes:
        effects: how often the call of a key had its effect.
        names: the name of the tool of each of these calls.
    """

    effects: Counter[str] = field(factory=Counter)
    names: dict[str, str] = field(factory=dict)
    _forgotten: dict[str, int] = field(factory=dict)

    def note(self, name: str, key: str, token: int | None) -> None:
        """Note an effect, unless it is one of a process that goes on with an execution which was deleted.

        Args:
            name: the name of the tool.
            key: the key of the call.
            token: the token of the claim under which it runs.
        """
        if token is not None and any(
            key.startswith(start) and token <= last for start, last in self._forgotten.items()
        ):
            return
        self.effects[key] += 1
        self.names[key] = name

    def forget(self, execution_id: str, token: int) -> None:
        """Forget the calls of an execution that is deleted now: another one of its id starts anew.

        Args:
            execution_id: the execution.
            token: the latest token of a claim; that of the other one is larger.
        """
        start = f"{execution_id}/"
        self._forgotten[start] = token
        for key in [key for key in self.effects if key.startswith(start)]:
            del self.effects[key]
