"""The contract of the models that come with the package: models by name, and the modes in which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast, runtime_checkable

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.values.bounds import Bounds
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.inference import InferenceOptions, ModeChoice
from agentloop.values.secrets import KeyFunction, Secret
from agentloop.values.state import AgentState


@runtime_checkable
class ModelConfig(Protocol):
    """The configuration of a model: an `LLMConfig`."""

    @property
    def model(self) -> str:
        """The model, by the provider's name for it."""

    @property
    def wire_format(self) -> str:
        """The name of the wire format."""

    @property
    def options(self) -> InferenceOptions:
        """Default options; those of a request override them."""


class CanProvideModels(Protocol):
    """Makes models of their names, and knows the modes in which they are called; `agentloop.models.provided` does."""

    def inference_of(
        self,
        model: str | ModelConfig | CanInfer,
        *,
        base_url: str | None = None,
        api_key: str | Secret | KeyFunction | None = None,
        timeout: float | None = None,
    ) -> CanInfer:
        """Return the inference of a model string or a configuration; an inference is returned as it is.

        Raises:
            ConfigurationError: the model string is invalid, its key is missing, or a setting cannot apply to the model.
            TypeError: the model is none of these types.
        """

    def get_mode(self, name: str) -> CanUseMode:
        """Return the mode of this name for a model that has all capabilities.

        Raises:
            ConfigurationError: no mode has this name.
        """

    def select_mode(
        self,
        mode: CanUseMode | str,
        inference: CanInfer,
        rows: Sequence[CapabilityRow] = (),
        *,
        state: AgentState | None = None,
    ) -> CanUseMode:
        """Return the mode in which a model is called.

        Raises:
            ConfigurationError: no mode has this name.
        """

    def explain_mode(self, name: str, *, wire_format: str = "", rows: Sequence[CapabilityRow] = ()) -> ModeChoice:
        """Return the mode that `auto` chooses for a model, and why."""

    def in_mode(
        self, inference: CanInfer, mode: CanUseMode, bounds: Bounds, *, asks_for_answer: bool = False
    ) -> CanInfer:
        """Return a model that is called in a mode, with bounds on its answers; `asks_for_answer` leaves it no call."""

    def asked(self, called: CanInfer, rows: Sequence[CapabilityRow], state: AgentState) -> CanInfer:
        """Return a model of `in_mode` that asks its server before it is called by the tool API."""


@cache
def models() -> CanProvideModels:
    """Return the models and modes that come with the package; a driver that first needs them loads them."""
    return cast("CanProvideModels", import_module("agentloop.models.provided"))
