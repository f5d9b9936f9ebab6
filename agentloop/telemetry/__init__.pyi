from agentloop.telemetry.logs import JsonFormatter as JsonFormatter
from agentloop.telemetry.logs import LogContext as LogContext
from agentloop.telemetry.logs import LogRedaction as LogRedaction
from agentloop.telemetry.open_telemetry import OpenTelemetry as OpenTelemetry
from agentloop.telemetry.propagation import continue_trace as continue_trace
from agentloop.telemetry.propagation import trace_headers as trace_headers
