"""Moving house: a queue is carried from one store to another, whole, checked, and by as many tries as it takes.

Whatever a move has done is known to the two stores, each of which keeps a state (`store/moves.py`), so that running the
same command again goes on where the last one ended, however that did:

1. TO is marked as moved into, and serves nobody.
2. FROM is frozen: it takes and gives no jobs.
3. What runs there ends, or is rescued; then nothing in FROM changes any more.
4. Everything is copied, kind by kind and page by page; how far it came is stored with each page.
5. Both sides are read again and compared.
6. TO is opened, then FROM says for good where the queue went.

Jobs can run in FROM before 3 and in TO after 6, and nowhere in between.
"""

from holdfast.moving.mover import move, thaw
from holdfast.moving.reporting import Progress, Report

__all__ = ["Progress", "Report", "move", "thaw"]
