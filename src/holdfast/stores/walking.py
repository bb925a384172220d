"""How far a search walks that no index narrows: in windows of arrival, and then it says where to go on.

A page of such a search may be short, or empty, although more follow; without this bound one for a rare tag would walk
past every job there is. Jobs that retention has taken leave gaps, which cost nothing: a window begins at a job.
"""

WINDOW = 5_000  # places in the order of arrival
WINDOWS_MAX = 20  # of one page: about a tenth of a second
PENDING_SORTED_MAX = 20_000  # pending jobs that are sorted by arrival; of more, there are some in every window
EVERYTHING = 2**63 - 1  # the place before which all are
