from agentloop.service.trace.comparison import compare_traces as compare_traces
from agentloop.service.trace.document import Trace as Trace
from agentloop.service.trace.page import render_trace_page as render_trace_page
from agentloop.service.trace.page import write_trace_page as write_trace_page
from agentloop.service.trace.reader import TraceReader as TraceReader
from agentloop.service.trace.reader import build_trace as build_trace
