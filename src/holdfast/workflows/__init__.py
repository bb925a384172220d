"""Workflows: declared shapes of jobs that hang together."""
