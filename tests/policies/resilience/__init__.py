"""The layers around a tool."""
