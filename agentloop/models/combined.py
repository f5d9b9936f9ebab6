"""What inferences share that pass each request to one of several models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import (
    CanCombineModels,
    CanInfer,
    CanNameModel,
    CanReportDelays,
    CanReportOmissions,
    CanReportRetries,
    CanReportRoutes,
    DelayReport,
    OmissionReport,
    RetryReport,
    RouteReport,
)
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError
from agentloop.values.inference import InferenceRequest


def as_inferences(inferences: Sequence[CanInfer], owner: str) -> tuple[CanInfer, ...]:
    """Check the models of an inference.

    Raises:
        ConfigurationError: there are none.
        TypeError: one is not an inference.
    """
    if not inferences:
        raise ConfigurationError(f"a {owner} needs at least one inference")
    for inference in inferences:
        if not isinstance(inference, CanInfer):
            raise TypeError(f"{inference!r} is not an inference; subclass CanInfer")
    return tuple(inferences)


class CombinedInference(
    CanInfer,
    CanAcceptExecutionScope,
    CanReportRetries,
    CanReportDelays,
    CanReportOmissions,
    CanReportRoutes,
    CanNameModel,
    CanCombineModels,
    CanRenderRequest,
):
    """Passes each request to one of several models; what the models report reaches the driver.

    The first model stands for all where one has to: for the name, and for what a request looks like.
    """

    @abstractmethod
    def with_models(self, models: Sequence[CanInfer]) -> Self:
        """Return a copy with these models in place of its own, in the same order."""

    @property
    def model_name(self) -> str:
        """The name of the first model."""
        first = self.models[0]
        return first.model_name if isinstance(first, CanNameModel) else ""

    @property
    def wire_format_name(self) -> str:
        """The wire format of the first model."""
        first = self.models[0]
        return first.wire_format_name if isinstance(first, CanNameModel) else ""

    @property
    def is_makers_api(self) -> bool:
        """Whether all models are called at the APIs of their makers."""
        return all(isinstance(each, CanNameModel) and each.is_makers_api for each in self.models)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request as the first model receives it."""
        first = self.models[0]
        return first.render_request(request) if isinstance(first, CanRenderRequest) else request

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose models are bound to the scope."""
        return self.with_models(
            [
                # The requests of earlier processes count for the first model.
                each.with_execution_scope(scope if index == 0 else scope.without_inferences())
                if isinstance(each, CanAcceptExecutionScope)
                else each
                for index, each in enumerate(self.models)
            ]
        )

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy whose models report their retries."""
        return self.with_models(
            [each.with_retry_report(report) if isinstance(each, CanReportRetries) else each for each in self.models]
        )

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy whose models report requests that wait."""
        return self.with_models(
            [each.with_delay_report(report) if isinstance(each, CanReportDelays) else each for each in self.models]
        )

    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy whose models report tools that they leave out."""
        return self.with_models(
            [
                each.with_omission_report(report) if isinstance(each, CanReportOmissions) else each
                for each in self.models
            ]
        )

    def with_route_report(self, report: RouteReport) -> Self:
        """Return a copy whose models report which model they choose."""
        return self.with_models(
            [each.with_route_report(report) if isinstance(each, CanReportRoutes) else each for each in self.models]
        )
