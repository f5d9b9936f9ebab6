"""Files that type checkers check; `test_typing.py` runs them. Nothing in the others is executed."""
