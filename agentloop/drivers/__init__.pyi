from agentloop.drivers.driver import Driver as Driver
from agentloop.drivers.driver import StepDraft as StepDraft
from agentloop.drivers.forwarding import ForwardingDriver as ForwardingDriver
from agentloop.drivers.inferring_driver import InferringDriver as InferringDriver
from agentloop.drivers.rejections import Rejection as Rejection
from agentloop.drivers.scripted import ScenarioStep as ScenarioStep
from agentloop.drivers.scripted import ScriptedDriver as ScriptedDriver
from agentloop.drivers.tool_calling import ToolCallingDriver as ToolCallingDriver
