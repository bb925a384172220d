-- Whether anything is staged at all, or named: mostly not, and then there is nothing to unpack or to remove.
SELECT EXISTS (SELECT FROM holdfast.staged) OR EXISTS (SELECT FROM holdfast.unpack_due)
