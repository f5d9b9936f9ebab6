"""The demo: a support agent of a small shop, with a scripted model and everything else real."""
