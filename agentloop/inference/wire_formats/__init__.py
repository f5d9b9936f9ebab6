"""Wire formats, one folder each; `agentloop.inference.wire_format` returns them by name."""
