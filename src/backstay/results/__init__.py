"""Result tables: rows of a declared model, written during a run and published by its completion."""
