-- Whether anything is staged at all: mostly not, and then there is nothing to unpack or to remove.
SELECT EXISTS (SELECT FROM holdfast.staged)
