"""The contract of inferences: whatever can be asked as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse


class CanInfer(ABC):
    """Asks a model.

    An implementer keeps these laws:

    - The request is not changed (law 3).
    - The response's usage counts this inference; what the provider did not report is None (law 6).
    - No key or other secret appears in an error, a repr or a response (law 18).
    - A streamed answer ends with the response that `infer` would have returned (law 7). What came before it is provisional.
    """

    @abstractmethod
    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model and wait for its whole answer.

        Raises:
            InferenceError: typed by what went wrong.
        """

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        """Ask the model and take its answer while it is written: any number of deltas, then the whole response.

        Whoever cannot answer in pieces answers with the response alone, as here. Whoever stops reading early closes the
        iterator (`aclose`), which ends the inference.

        Raises:
            InferenceError: typed by what went wrong, also after deltas.
        """
        yield await self.infer(request)
