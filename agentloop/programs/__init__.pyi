from agentloop.programs.interpreter import Interpreter as Interpreter
from agentloop.programs.program import ProgramLimits as ProgramLimits
from agentloop.programs.run_program import RunProgram as RunProgram
from agentloop.programs.signatures import render_signatures as render_signatures
