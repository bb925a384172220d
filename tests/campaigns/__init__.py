"""The harness of the crash tests and of scripts/campaign: processes, scenes, planted bugs and judges, but no tests."""
