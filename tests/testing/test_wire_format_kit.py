"""The law suite of wire formats: the package's formats pass."""

from __future__ import annotations

import pytest
from attrs import evolve

from agentloop.errors import ConfigurationError
from agentloop.models import wire_format
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS
from agentloop.testing import LawViolation, WireFormatKit
from agentloop.values import Usage
from tests.generated import examples
from tests.testing.zoo.wire_formats import REFUSALS, Wrapped, answers_of, counted_answers


@pytest.mark.parametrize("law", WireFormatKit.laws)
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_wire_formats_obey_the_laws(name: str, law: int) -> None:
    """Each wire format of the package obeys every law of the contract."""
    WireFormatKit(lambda: wire_format(name), answers_of(name), REFUSALS, examples=examples(25)).check(law)


def test_the_wrapped_format_obeys_all_laws() -> None:
    """What the broken formats have in common breaks no law."""
    WireFormatKit(
        Wrapped, [*answers_of("openai-chat"), *counted_answers()], REFUSALS, examples=examples(25)
    ).check_all()


def test_a_kit_without_an_answer_is_refused() -> None:
    """Without an answer, most laws would hold for any format."""
    with pytest.raises(ConfigurationError, match="at least one recorded answer"):
        WireFormatKit(Wrapped, [])


def test_an_answer_is_compared_with_what_it_says() -> None:
    """The parts, the end and the usage of a recorded answer can be given, so that nothing has to be told from its body."""
    answer = counted_answers()[0]
    decoded = Wrapped().decode_response(200, {}, answer.body)
    for law, other in (
        (6, evolve(decoded, usage=Usage(1, 1))),
        (23, evolve(decoded, finish_reason="length")),
        (44, decoded.with_parts(decoded.tool_calls)),
    ):
        WireFormatKit(Wrapped, [evolve(answer, response=decoded)], examples=1).check(law)
        with pytest.raises(LawViolation) as raised:
            WireFormatKit(Wrapped, [evolve(answer, response=other)], examples=1).check(law)
        assert raised.value.law == law
