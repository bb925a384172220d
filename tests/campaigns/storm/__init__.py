"""A storm: every fault of an engine at random, under every kind of load, judged by an independent ledger.

Processes of several hosts submit and run jobs (`submit.py`, `work.py`, the handlers in `app.py`). Each submitter writes
what was acknowledged to its own file, with fsync; each handler writes when it began and ended (`ledger.py`). Hosts are
killed and stopped (`hosts.py`), and each engine has its own faults (`site_*.py`): servers that die, disks that fill,
clocks that jump. Meanwhile the queue is transferred (`transfer.py`). Then the faults stop, every job has to end within
the bound of L1 (`storm.py`), and the judge (`judge.py`) compares what is stored with what the ledgers say.
"""
