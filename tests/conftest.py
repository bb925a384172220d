"""Settings that all tests share."""

from hypothesis import settings

# The gate draws the same examples every time, and a busy machine fails nothing. Campaigns draw anew.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.load_profile("gate")
