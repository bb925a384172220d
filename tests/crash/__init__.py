"""Holdfast under faults: a judge, bugs that prove it can judge, and processes that are killed for real."""
