"""The domain: records, states and decisions, pure and shared by every engine; and the port."""
