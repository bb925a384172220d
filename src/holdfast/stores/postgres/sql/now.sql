-- The server's clock.
SELECT holdfast.micros()
