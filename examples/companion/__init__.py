"""Companion: a summary a day for every user, in the user's own time zone, on a durable queue."""
