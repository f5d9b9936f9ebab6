"""`@makes_ensemble`: functions that make ensembles and may be named in configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, cast

from attrs import frozen

from agentloop.tools.ensembles.ensemble_parts import EnsembleParts
from agentloop.tools.signature import Signature
from agentloop.tools.validation import SchemaValidator

P = ParamSpec("P")
E_co = TypeVar("E_co", bound=EnsembleParts, covariant=True)


@frozen(eq=False)
class EnsembleMaker(Generic[P, E_co]):
    """A function that makes an ensemble; made by `@makes_ensemble`, and called as the function it was.

    A descriptor can name it and give it options. A function without this mark is never called by configuration.

    Attributes:
        function: the function.
    """

    function: Callable[P, E_co]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> E_co:
        """Make the ensemble."""
        return self.function(*args, **kwargs)

    @cached_property
    def _signature(self) -> Signature:
        return Signature.of(self.function)

    def problems(self, options: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong with options, as pairs of an option's JSON path and a message.

        Raises:
            ToolDefinitionError: when the function has parameters that cannot be told in JSON.
        """
        schema = self._signature.documented[1]
        return SchemaValidator(schema, "the options").problems(dict(options))

    def made(self, options: Mapping[str, Any]) -> EnsembleParts:
        """Make the ensemble with options that have no problems.

        Raises:
            Exception: whatever the function raises.
        """
        function = cast("Callable[..., EnsembleParts]", self.function)
        return function(**self._signature.prepare(dict(options)))


def makes_ensemble(function: Callable[P, E_co]) -> EnsembleMaker[P, E_co]:
    """Mark a function that makes an ensemble, so that descriptors may name it and give it options.

        @makes_ensemble
        def warehouse(city: str) -> Ensemble:
            \"\"\"Tools of the warehouse in a city.\"\"\"
            return Ensemble("warehouse", tools_of(city))

    Args:
        function: a typed function whose parameters can be told in JSON.
    """
    return EnsembleMaker(function)
