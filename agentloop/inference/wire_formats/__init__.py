"""Wire formats, one module or package each; `agentloop.inference.wire_format` returns them by name."""
