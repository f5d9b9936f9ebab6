"""Tests of the page that shows a trace, in a real browser."""
