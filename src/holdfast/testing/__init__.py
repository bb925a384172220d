"""For those who test a job queue: their own, built on Holdfast, or an engine of Holdfast."""
