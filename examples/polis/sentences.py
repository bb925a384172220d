"""A narrative made from the figures alone: short sentences, each of which can be checked in the tables below it.

A number in square brackets is a comment; the report makes a link of it.
"""

from collections.abc import Callable, Iterable, Sequence

from .report.model import Analysis, Comment
from .report.words import counted, group_name, joined, percent

FEW_VOTES = 5  # a comment that fewer have seen says nothing of anybody


def sentences(analysis: Analysis, sections: Sequence[str]) -> dict[str, str]:
    return {name: WRITERS[name](analysis) for name in sections}


def _summary(analysis: Analysis) -> str:
    groups, layers = analysis.groups, analysis.layers
    first = (
        f"{counted(len(analysis.participants), 'person', 'people')} cast {analysis.votes:,} votes on "
        f"{counted(len(analysis.comments), 'comment')}."
    )
    if len(groups) > 1:
        largest = max(groups, key=lambda each: each.size)
        everyone = sum(each.size for each in groups)
        first += (
            f" By how they voted they form {counted(len(groups), 'opinion group')}; the largest, "
            f"{group_name(largest.group_id)}, holds {percent(largest.size / everyone)} of them."
        )
    else:
        first += " They vote so much alike that they form a single opinion group."
    shared, split = most_agreed(analysis.comments, 1), most_divisive(analysis.comments, 1)
    second = []
    if shared:
        second.append(f"What unites them most is [{shared[0].comment_id}]: {_majority(shared[0])}.")
    if split:
        second.append(f"What divides them most is [{split[0].comment_id}].")
    if layers and layers[-1].topics:
        names = [each.name for each in sorted(layers[-1].topics, key=lambda each: -each.size)[:4]]
        second.append(f"They talk above all about {joined(names)}.")
    return first + "\n\n" + " ".join(second)


def _majority(comment: Comment) -> str:
    votes = comment.votes
    word, count = ("agree", votes.agrees) if votes.agrees >= votes.disagrees else ("disagree", votes.disagrees)
    return f"{percent(votes.share(count))} of those who saw it {word}"


def _groups(analysis: Analysis) -> str:
    parts = []
    for group in analysis.groups:
        agrees = [f"[{each.comment_id}]" for each in group.representative if each.agrees][:3]
        against = [f"[{each.comment_id}]" for each in group.representative if not each.agrees][:3]
        said = f"{group_name(group.group_id)} ({counted(group.size, 'person', 'people')})"
        if agrees:
            said += f" stands out by agreeing with {joined(agrees)}"
        if against:
            said += f"{' and' if agrees else ' stands out'} by disagreeing with {joined(against)}"
        parts.append(f"- {said}." if agrees or against else f"- {said} has no comment that sets it apart.")
    return "\n".join(parts)


def _consensus(analysis: Analysis) -> str:
    shared, split = most_agreed(analysis.comments, 3), most_divisive(analysis.comments, 3)
    if not shared:
        return "No comment has enough votes in every group to speak of agreement."
    said = f"All groups say the same, more than of anything else, of {joined([f'[{each.comment_id}]' for each in shared])}."
    if split:
        said += f" The groups are furthest apart on {joined([f'[{each.comment_id}]' for each in split])}."
    return said


def _topics(analysis: Analysis) -> str:
    if not analysis.layers or not analysis.layers[-1].topics:
        return "There are too few comments to find topics among them."
    coarse = analysis.layers[-1]
    ranked = sorted(coarse.topics, key=lambda each: -each.size)
    lines = [
        f"- {each.name}: {counted(each.size, 'comment')}, about {joined(list(each.keywords[:4]))}."
        if each.keywords
        else f"- {each.name}: {counted(each.size, 'comment')}."
        for each in ranked
    ]
    finer = f", and {len(analysis.layers[0].topics)} on the finest" if len(analysis.layers) > 1 else ""
    head = f"By meaning the comments fall into {counted(len(ranked), 'topic')} on the coarsest layer{finer}."
    return head + "\n\n" + "\n".join(lines)


def _uncertainty(analysis: Analysis) -> str:
    unsure = most_unsure(analysis.comments, 3)
    if not unsure:
        return "Hardly anybody passed on a comment: people knew what they thought."
    passed = unsure[0].votes
    return (
        f"People were least sure about {joined([f'[{each.comment_id}]' for each in unsure])}: "
        f"{percent(passed.share(passed.passes))} of those who saw the first of them passed."
    )


WRITERS: dict[str, Callable[[Analysis], str]] = {
    "summary": _summary,
    "groups": _groups,
    "consensus": _consensus,
    "topics": _topics,
    "uncertainty": _uncertainty,
}


# Which comments stand out. The tables of the report show the same ones.


def _seen(comments: Iterable[Comment]) -> list[Comment]:
    return [each for each in comments if each.votes.seen >= FEW_VOTES]


def most_agreed(comments: Iterable[Comment], count: int) -> list[Comment]:
    return sorted(_seen(comments), key=lambda each: (-each.consensus, each.comment_id))[:count]


def most_divisive(comments: Iterable[Comment], count: int) -> list[Comment]:
    return sorted(_seen(comments), key=lambda each: (-each.divisiveness, each.comment_id))[:count]


def most_unsure(comments: Iterable[Comment], count: int) -> list[Comment]:
    ranked = sorted(_seen(comments), key=lambda each: (-each.votes.share(each.votes.passes), each.comment_id))
    return [each for each in ranked[:count] if each.votes.passes]
