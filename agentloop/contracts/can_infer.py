"""The contract of inferences: whatever can be asked as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse


class CanInfer(ABC):
    """Asks a model.

    An implementer keeps these laws:

    - The request is not changed (law 3).
    - The response's usage counts this inference; what the provider did not report is None (law 6).
    - No key or other secret appears in an error, a repr or a response (law 18).
    """

    @abstractmethod
    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model and wait for its whole answer.

        Raises:
            InferenceError: typed by what went wrong.
        """
