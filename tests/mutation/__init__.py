"""Mutation testing: small mistakes are put into the package, one at a time, and some test has to find each of them."""
