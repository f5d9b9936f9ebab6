"""The journal in one SQLite file: its tables, what is spilled, who writes, who claims, and what errors mean."""
