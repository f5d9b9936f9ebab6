from agentloop.service.telemetry.logs import JsonFormatter as JsonFormatter
from agentloop.service.telemetry.logs import LogContext as LogContext
from agentloop.service.telemetry.logs import LogRedaction as LogRedaction
from agentloop.service.telemetry.open_telemetry import OpenTelemetry as OpenTelemetry
