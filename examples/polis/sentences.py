"""Writes the narrative from the figures alone: short sentences that can be checked against the lists.

A number in square brackets is a comment; the report makes a link of it.
"""

from collections.abc import Callable, Sequence

from .report.choice import most_agreed, most_divisive, most_unsure
from .report.model import Analysis, Comment, Group
from .report.words import counted, group_name, joined, percent, quoted, share_of


def sentences(analysis: Analysis, sections: Sequence[str]) -> dict[str, str]:
    return {name: WRITERS[name](analysis) for name in sections}


def _summary(analysis: Analysis) -> str:
    people = counted(len(analysis.participants), "person", "people")
    first = f"{people} cast {counted(analysis.votes, 'vote')} on {counted(len(analysis.comments), 'comment')}."
    if not analysis.has_votes:
        comments = counted(len(analysis.comments), "comment")
        first = f"{comments} were agreed or disagreed with {counted(analysis.votes, 'time')}; by whom is not known."
    elif len(analysis.groups) > 1 and analysis.certainty and analysis.certainty.clarity == "none":
        first += " Their votes form no clear opinion groups."
    elif len(analysis.groups) > 1:
        largest = max(analysis.groups, key=lambda each: each.size)
        share = percent(largest.size / sum(each.size for each in analysis.groups))
        sure = "" if analysis.certainty is None or analysis.certainty.clarity == "clear" else ", though uncertain ones"
        first += (
            f" By how they voted they form {counted(len(analysis.groups), 'opinion group')}{sure};"
            f" the largest, {group_name(largest.group_id)}, holds {share} of them."
        )
    else:
        first += " They vote so much alike that they form a single opinion group."
    second = [
        *(f"What unites them most: {_cited(each)}. {_majority(each)}." for each in most_agreed(analysis.comments, 1)),
        *(f"What divides them most: {_cited(each)}. {_apart(each)}." for each in most_divisive(analysis.comments, 1)),
    ]
    if analysis.main_layer is not None:
        ranked = sorted(analysis.main_layer.topics, key=lambda each: -each.size)[:4]
        second.append(f"The largest topics are {joined([quoted(each.name) for each in ranked])}.")
    return "\n\n".join([first, *second])


def _groups(analysis: Analysis) -> str:
    if not analysis.has_votes:
        return ""
    if len(analysis.groups) < 2:
        return "With one group only there is nothing that tells groups apart."
    return "\n".join(f"- {_group(each, analysis)}" for each in analysis.groups)


def _group(group: Group, analysis: Analysis) -> str:
    comments = {each.comment_id: each for each in analysis.comments}
    said = f"{group_name(group.group_id)}, {counted(group.size, 'person', 'people')},"
    agrees = [comments[each.comment_id] for each in group.representative if each.agrees]
    against = [comments[each.comment_id] for each in group.representative if not each.agrees]
    parts = []
    if agrees:
        parts.append(f"agrees more than any other with {_cited(agrees[0])}")
    if against:
        parts.append(f"rejects {_cited(against[0])}")
    return f"{said} {joined(parts)}." if parts else f"{said} has no comment that sets it apart."


def _consensus(analysis: Analysis) -> str:
    shared, split = most_agreed(analysis.comments, 3), most_divisive(analysis.comments, 3)
    if not shared:
        return "No comment has enough votes to speak of agreement."
    if not analysis.has_votes:
        return f"People agree most with {_numbers(shared)}."
    said = f"All groups see {_numbers(shared)} alike."
    return f"{said} They are furthest apart on {_numbers(split)}." if split else said


def _topics(analysis: Analysis) -> str:
    if analysis.main_layer is None:
        return "There are too few comments to find topics among them."
    said = f"By what they mean the comments fall into {counted(len(analysis.main_layer.topics), 'topic')}"
    if analysis.main_layer is not analysis.layers[0]:
        said += f", and these into {len(analysis.layers[0].topics)} finer ones"
    return f"{said}. Comments that are close to one another on the map say similar things."


def _uncertainty(analysis: Analysis) -> str:
    unsure = most_unsure(analysis.comments, 3)
    if not unsure:
        return "Hardly anybody passed on a comment: people knew what they thought."
    passed = unsure[0].votes
    share = share_of(passed.passes, passed.seen)
    return f"People were least sure about {_numbers(unsure)}: {share} votes on the first of them are a pass."


WRITERS: dict[str, Callable[[Analysis], str]] = {
    "summary": _summary,
    "groups": _groups,
    "consensus": _consensus,
    "topics": _topics,
    "uncertainty": _uncertainty,
}


def _cited(comment: Comment) -> str:
    return f"{quoted(comment.text)} [{comment.comment_id}]"


def _numbers(comments: Sequence[Comment]) -> str:
    return joined([f"[{each.comment_id}]" for each in comments])


def _majority(comment: Comment) -> str:
    votes = comment.votes
    word, count = ("agree", votes.agrees) if votes.agrees >= votes.disagrees else ("disagree", votes.disagrees)
    return f"{share_of(count, votes.seen)} votes {word}"


def _apart(comment: Comment) -> str:
    shares = {group: votes.share(votes.agrees) for group, votes in comment.by_group.items()}
    if not shares:
        return _majority(comment)
    most, least = (choose(shares, key=shares.__getitem__) for choose in (max, min))
    first, last = (
        f"{share_of(comment.by_group[group].agrees, comment.by_group[group].seen)} votes in {group_name(group)}"
        for group in (most, least)
    )
    return f"{first} agree, and {last}"
