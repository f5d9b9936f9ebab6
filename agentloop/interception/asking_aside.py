"""Inferences of interceptors of their own, beside those of the driver."""

from __future__ import annotations

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_log import ExecutionLog
from agentloop.interception.recorded_error import recorded_error
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.recorded import RecordedInference
from agentloop.values.tool_execution import ErrorInfo


async def asked_aside(inference: CanInfer, request: InferenceRequest, log: ExecutionLog | None) -> InferenceResponse:
    """Ask a model, unless it was asked before the execution was interrupted; what comes of it is written down.

    Args:
        inference: the model.
        request: what to ask.
        log: where it is written down; None for nowhere.

    Raises:
        InferenceError: as the model does, also when that is recorded.
    """
    if log is None:
        return await inference.infer(request)
    recorded = log.next_inference(request)
    if recorded is not None:
        if recorded.response is None:
            raise recorded_error(recorded.error)
        return recorded.response
    try:
        response = await inference.infer(request)
    except Exception as error:
        log.note_inference(request, RecordedInference(error=ErrorInfo.of(error)))
        raise
    log.note_inference(request, RecordedInference(response=response, usage=response.usage))
    return response
