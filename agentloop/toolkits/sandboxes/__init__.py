"""Where programs run that are not trusted."""
