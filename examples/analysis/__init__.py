"""An audio analysis service that loses no job: tempo, key, loudness and sections of songs, and timed lyrics."""
