"""The law suite of wire formats: the package's formats pass."""

from __future__ import annotations

import pytest

from agentloop.errors import ConfigurationError
from agentloop.models import wire_format
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS
from agentloop.testing import WireFormatKit
from tests.generated import examples
from tests.testing.zoo.wire_formats import REFUSALS, Wrapped, answers_of


@pytest.mark.parametrize("law", WireFormatKit.laws)
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_wire_formats_obey_the_laws(name: str, law: int) -> None:
    """Each wire format of the package obeys every law of the contract."""
    WireFormatKit(lambda: wire_format(name), answers_of(name), REFUSALS, examples=examples(25)).check(law)


def test_the_wrapped_format_obeys_all_laws() -> None:
    """What the broken formats have in common breaks no law."""
    WireFormatKit(Wrapped, answers_of("openai-chat"), REFUSALS, examples=examples(25)).check_all()


def test_a_kit_without_an_answer_is_refused() -> None:
    """Without an answer, most laws would hold for any format."""
    with pytest.raises(ConfigurationError, match="at least one recorded answer"):
        WireFormatKit(Wrapped, [])
