"""Analysis of a Polis conversation: opinion groups from votes, topics from comments, and a report of both."""
