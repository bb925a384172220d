"""Formats figures and names."""

from collections.abc import Sequence


def group_name(group_id: int) -> str:
    """0 -> Group A."""
    letters = ""
    number = group_id + 1
    while number > 0:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return f"Group {letters or group_id}"


def counted(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def percent(share: float) -> str:
    return f"{round(100 * share)}%"


def share_of(count: int, votes: int) -> str:
    """73% of 45: a share says little without the number of votes."""
    return f"{percent(count / votes)} of {votes:,}" if votes else "no votes"


def joined(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def quoted(text: str, letters: int = 140) -> str:
    """Quote a comment within a sentence: shortened at a word, without its final full stop."""
    if len(text) > letters:
        text = f"{text[:letters].rsplit(' ', 1)[0]} …"
    return f"“{text.rstrip('. ')}”"
