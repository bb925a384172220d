"""Selects the notable comments: the narrative and the lists of the report use the same ones."""

from collections.abc import Iterable

from .model import Comment

FEW_VOTES = 5  # a comment with fewer votes is not representative


def most_voted(comments: Iterable[Comment], count: int) -> list[Comment]:
    """Return the comments with the most votes, in the order of their numbers."""
    ranked = sorted(comments, key=lambda each: (-each.votes.seen, each.comment_id))[:count]
    return sorted(ranked, key=lambda each: each.comment_id)


def _seen(comments: Iterable[Comment]) -> list[Comment]:
    return [each for each in comments if each.votes.seen >= FEW_VOTES and not each.is_meta]


def most_agreed(comments: Iterable[Comment], count: int) -> list[Comment]:
    return sorted(_seen(comments), key=lambda each: (-each.consensus, each.comment_id))[:count]


def most_divisive(comments: Iterable[Comment], count: int) -> list[Comment]:
    apart = [each for each in _seen(comments) if len(each.by_group) > 1]
    return sorted(apart, key=lambda each: (-each.divisiveness, each.comment_id))[:count]


def most_unsure(comments: Iterable[Comment], count: int) -> list[Comment]:
    ranked = sorted(_seen(comments), key=lambda each: (-each.votes.share(each.votes.passes), each.comment_id))
    return [each for each in ranked[:count] if each.votes.passes]
