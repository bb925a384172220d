-- Wait for everyone who writes jobs, and keep others from beginning to. No index: it locks the table.
LOCK TABLE holdfast.job IN SHARE ROW EXCLUSIVE MODE
