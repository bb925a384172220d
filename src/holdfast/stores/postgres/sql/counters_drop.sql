-- Counters that are over their time.
DELETE FROM holdfast.counter WHERE minute < $1
