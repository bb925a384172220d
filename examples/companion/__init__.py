"""Daily summaries and syncs of users, each in their own time zone."""
