"""The border to the official SDK of the Model Context Protocol: the only modules that know it; loaded with the first server."""
