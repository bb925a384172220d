"""Results that are data: tables that a model declares, rows that a run puts and its completion publishes."""
