-- Hold everything that several special jobs will wait for, in one order for everyone.
SELECT holdfast.hold_for($1::jsonb)
