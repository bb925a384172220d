"""The lists of the report: comments, and how everyone voted on them."""

from collections.abc import Iterable, Sequence

from .markup import element, text
from .model import Analysis, Comment, Group, Votes
from .plots import group_class
from .words import counted, group_name, percent, share_of


def comment_list(
    comments: Iterable[Comment], groups: Sequence[Group], share: str = "agree", language: str | None = None
) -> str:
    """Return the comments, each with a bar for everyone and one per group, and next to it the share that agrees or
    passes."""
    return element("ol", *(_item(each, groups, share, language) for each in comments), class_="comments")


def _item(each: Comment, groups: Sequence[Group], share: str, language: str | None) -> str:
    bars = [_bar_row("Everybody", "all", each.votes, share)]
    if len(groups) > 1:
        bars += (
            _bar_row(group_name(group.group_id), group_class(group.group_id), each.by_group[group.group_id], share)
            for group in groups
            if group.group_id in each.by_group
        )
    return element("li", _words(each, language), element("div", *bars, class_="bars"))


def _words(each: Comment, language: str | None) -> str:
    """Return the comment; with its language a browser breaks lines, and chooses between Chinese and Japanese forms of
    a character, as it should."""
    number = element("a", str(each.comment_id), href=f"#c{each.comment_id}", class_="cite")
    return element("p", number, " ", text(each.text), class_="words", lang=language)


def _bar_row(name: str, kind: str, votes: Votes, share: str) -> str:
    count = votes.passes if share == "pass" else votes.agrees
    return element(
        "div",
        element("span", text(name), class_=f"who {kind}"),
        bar(votes),
        element("span", share_of(count, votes.seen) if votes.seen else "–", class_="share"),
        class_="bar-row",
    )


def bar(votes: Votes) -> str:
    """Return a bar of agree, pass and disagree, with a text for screen readers."""
    said = (
        f"{percent(votes.share(votes.agrees))} agree, {percent(votes.share(votes.disagrees))} disagree, "
        f"{percent(votes.share(votes.passes))} pass, of {counted(votes.seen, 'vote')}"
    )
    parts = (
        element("i", class_=kind, style=f"flex-grow:{count}")
        for kind, count in (("agree", votes.agrees), ("pass", votes.passes), ("disagree", votes.disagrees))
        if count
    )
    return element("span", *parts, class_="bar", role="img", aria_label=said, title=said)


def vote_legend(figure: str = "agree") -> str:
    """Return the legend. `figure`: the meaning of the number next to a bar."""
    parts = (element("span", element("i", class_=f"chip {kind}"), kind) for kind in ("agree", "pass", "disagree"))
    return element(
        "p",
        *parts,
        element("span", text("votes" if figure == "votes" else f"{figure}, of all votes"), class_="right"),
        class_="legend",
    )


def group_cards(analysis: Analysis) -> str:
    """Return, per group, a table of the comments that distinguish it."""
    comments = {each.comment_id: each for each in analysis.comments}
    everyone = sum(group.size for group in analysis.groups) or 1
    cards = (_card(group, comments, everyone, analysis.language) for group in analysis.groups)
    return element("div", *cards, class_="cards")


def _card(group: Group, comments: dict[int, Comment], everyone: int, language: str | None) -> str:
    head = element("tr", *(element("th", name, scope="col") for name in ("They", "Comment", "Share")))
    rows = (
        element(
            "tr",
            element(
                "td", "agree" if each.agrees else "disagree", class_=f"stand {'agree' if each.agrees else 'disagree'}"
            ),
            element("td", _words(comments[each.comment_id], language)),
            element("td", f"{percent(each.share)} of {each.votes:,}", class_="share"),
        )
        for each in group.representative
    )
    table = element("table", element("thead", head), element("tbody", *rows))
    size = f"{counted(group.size, 'person', 'people')}, {percent(group.size / everyone)} of all"
    return element(
        "section",
        element(
            "h3", text(group_name(group.group_id)), " ", element("small", size), class_=group_class(group.group_id)
        ),
        table if group.representative else element("p", "No comment sets this group apart."),
        class_=f"card {group_class(group.group_id)}",
    )


def every_comment(comments: Iterable[Comment], language: str | None = None) -> str:
    """Return the list of all comments, the target of links to them."""
    items = (
        element(
            "li",
            element("span", str(each.comment_id), class_="number"),
            element("span", text(each.text), class_="words", lang=language),
            bar(each.votes),
            element("span", f"{each.votes.seen:,}", class_="share"),
            id=f"c{each.comment_id}",
        )
        for each in comments
    )
    return element("ol", *items, class_="every")
