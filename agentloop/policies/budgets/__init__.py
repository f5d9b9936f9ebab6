"""Budgets: the interceptors, their engine, accounts, prices and leases."""
