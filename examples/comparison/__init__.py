"""One application on three systems: see README.md."""
