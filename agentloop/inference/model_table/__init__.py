"""What models are able to do, as a table by their names."""

from __future__ import annotations
