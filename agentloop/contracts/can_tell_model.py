"""The contract of inferences that know which model they ask."""

from __future__ import annotations

from abc import ABC, abstractmethod


class CanTellModel(ABC):
    """Tells which model it asks, so that what the model is able to do can be looked up before it is asked.

    An implementer keeps this law:

    - Both answers are the same for the life of the object, and telling them asks nobody.
    """

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model, as `provider:model` or by its bare name; empty when that is not known."""

    @property
    @abstractmethod
    def wire_format_name(self) -> str:
        """The name of the wire format that it speaks, such as `anthropic-messages`; empty when that is not known."""
