"""Backstay under faults: processes that are killed for real, and bugs that prove that the judge can judge."""
