"""The zoo: for each law of each kit there is an implementation that breaks it, and the kit says so."""

from __future__ import annotations

import pytest

from agentloop.testing import LawNotChecked, LawViolation
from tests.testing.zoo import MEMBERS
from tests.testing.zoo.zoo import OWN_EXAMPLES, Member


@pytest.mark.unmonitored
@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.id)
def test_a_broken_implementation_violates_its_law(member: Member) -> None:
    """The kit raises `LawViolation` with the number of the law that the member breaks, or says that it could not check it."""
    violation = member.violation_of(member.law, OWN_EXAMPLES)
    assert violation is not None, f"{member.kit} does not notice {member.name}"
    assert violation.law == member.law
    assert isinstance(violation, LawViolation if member.works else LawNotChecked)
