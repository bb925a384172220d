"""The report itself, section by section."""

from collections.abc import Sequence

from polis.configs import ReportConfig

from .choice import most_agreed, most_divisive, most_unsure
from .lists import comment_list, every_comment, group_cards, vote_legend
from .maps import agreement_columns, agreement_map
from .markup import element, prose, text
from .model import Analysis, Comment, Narrative
from .page import captioned, page, section
from .plots import PEOPLE_MAX, opinion_map
from .topics import layered_maps
from .visualizations import AGREEMENT_CAPTION, agreement_legend
from .words import counted, percent

LISTED = 6  # comments in a list


def whole(
    analysis: Analysis, drawn: Analysis, config: ReportConfig, narrative: Narrative, files: Sequence[str]
) -> bytes:
    """Return the report. `drawn` has the comments on maps and in the list; figures are those of the whole
    conversation."""
    sections = {"Summary": ("summary", _summary(analysis, narrative))}
    if analysis.has_votes:
        sections["Opinion groups"] = ("groups", _groups(analysis, narrative))
    if config.include_consensus:
        sections["What unites, what divides"] = ("consensus", _consensus(drawn, narrative))
    if config.include_topics:
        sections["What it is about"] = ("topics", _topics(drawn, narrative))
    if config.include_uncertainty and analysis.has_votes:
        sections["Where people are unsure"] = ("uncertainty", _uncertainty(analysis, narrative))
    sections["Every comment"] = ("comments", _comments(analysis, drawn))
    sections["How this was made"] = ("method", _method(analysis, narrative, files))
    links = (element("a", text(title), href=f"#{name}") for title, (name, _) in sections.items())
    return page(
        analysis.title,
        element(
            "main",
            _top(analysis),
            element("nav", *links, aria_label="Sections"),
            *(section(name, title, *parts) for title, (name, parts) in sections.items()),
        ),
    )


def _top(analysis: Analysis) -> str:
    topics = len(analysis.main_layer.topics) if analysis.main_layer else 0
    figures = (
        *([("people", len(analysis.participants))] if analysis.has_votes else ()),
        ("votes", analysis.votes),
        ("comments", len(analysis.comments)),
        *([(_group_figure(analysis), len(analysis.groups))] if analysis.has_votes else ()),
        ("topics", topics),
    )
    about = " · ".join(part for part in (analysis.asked, f"conversation {analysis.conversation_id}") if part)
    return element(
        "header",
        element("p", "Opinion report", class_="eyebrow"),
        element("h1", text(analysis.title)),
        element("p", text(about), class_="about"),
        element("dl", *(element("div", element("dd", f"{count:,}"), element("dt", name)) for name, count in figures)),
        class_="top",
    )


def _told(analysis: Analysis, narrative: Narrative, name: str) -> str:
    known = {each.comment_id for each in analysis.comments}
    written = narrative.sections.get(name, "")
    language = narrative.language if narrative.written_by else None
    return element("div", prose(written, known), class_="told", lang=language) if written else ""


def _summary(analysis: Analysis, narrative: Narrative) -> list[str]:
    author = f"Written by {narrative.written_by}" if narrative.written_by else "Written from the figures"
    note = f"{author}. {narrative.note}" if narrative.note else f"{author}."
    return [_told(analysis, narrative, "summary"), element("p", text(note), class_="author")]


def _groups(analysis: Analysis, narrative: Narrative) -> list[str]:
    people = "Each dot is a person; people who voted alike are close, and colours are opinion groups."
    if len(analysis.participants) > PEOPLE_MAX:
        people += f" {PEOPLE_MAX:,} of {len(analysis.participants):,} are shown."
    if any(each.group is None for each in analysis.participants):
        people += " Grey ones have voted too little to belong to a group."
    if len(analysis.variance) > 1:
        across, up = (percent(each) for each in analysis.variance[:2])
        people += f" The way across holds {across} of all difference between votes, the way up {up}."
    return [
        _certainty(analysis),
        captioned(opinion_map(analysis), text(people)),
        _told(analysis, narrative, "groups"),
        element("h3", "What each group stands for"),
        group_cards(analysis),
    ]


def _group_figure(analysis: Analysis) -> str:
    clarity = analysis.certainty.clarity if analysis.certainty else "clear"
    return {"none": "groups, not clear", "uncertain": "groups, uncertain"}.get(clarity, "opinion groups")


SAID = {
    "clear": "Clear groups.",
    "uncertain": "The groups are uncertain.",
    "none": "No clear groups: the votes can be divided like this, but hardly better than votes at random.",
}


def _certainty(analysis: Analysis) -> str:
    """Return how certain the groups are, and how they match those of Polis."""
    certainty, match = analysis.certainty, analysis.match
    if certainty is None or len(analysis.groups) < 2:
        return ""
    said = [element("strong", SAID[certainty.clarity])]
    if certainty.stability is None or certainty.silhouette is None:
        said.append("There are too few people to test them.")
    else:
        said.append(
            f"Their silhouette is {certainty.silhouette:.2f} (1: far apart, 0: touching everywhere"
            + (f"; shuffled votes reach {certainty.by_chance:.2f}" if certainty.by_chance is not None else "")
            + "). Their stability, which is how well they match the groups that samples of 80% of the people have, is"
            f" {certainty.stability:.2f} (1: the same groups, 0: chance)."
        )
    parts = [element("p", " ".join(said))]
    if match is not None:
        parts.append(
            element(
                "p",
                text(
                    f"Polis's own analysis has {counted(match.groups, 'group')}; the agreement on"
                    f" {counted(match.people, 'person', 'people')} is {match.rand_index:.2f}"
                    " (adjusted Rand index; 1: the same groups, 0: chance)"
                    + (". Why it is not higher:" if match.reasons else ".")
                ),
            )
        )
        if match.reasons:
            parts.append(
                element("ul", *(element("li", text(f"{each[0].upper()}{each[1:]}.")) for each in match.reasons))
            )
    return element("div", *parts, class_=f"note {certainty.clarity}")


def _consensus(analysis: Analysis, narrative: Narrative) -> list[str]:
    if not analysis.has_votes:
        return [
            _told(analysis, narrative, "consensus"),
            element("h3", "People agree most with these"),
            vote_legend(),
            _list(most_agreed(analysis.comments, LISTED), analysis),
        ]
    line = "Each dot is a comment, by how far the groups are apart on it."
    return [
        _told(analysis, narrative, "consensus"),
        captioned(agreement_columns(analysis), line, agreement_legend()),
        element("h3", "All groups see these alike"),
        vote_legend(),
        _list(most_agreed(analysis.comments, LISTED), analysis),
        element("h3", "These divide the groups"),
        vote_legend(),
        _list(most_divisive(analysis.comments, LISTED), analysis),
        element("h3", "On the map of comments"),
        captioned(agreement_map(analysis), AGREEMENT_CAPTION, agreement_legend()),
    ]


def _topics(analysis: Analysis, narrative: Narrative) -> list[str]:
    return [_told(analysis, narrative, "topics"), layered_maps(analysis) if analysis.layers else ""]


def _uncertainty(analysis: Analysis, narrative: Narrative) -> list[str]:
    return [
        _told(analysis, narrative, "uncertainty"),
        vote_legend("pass"),
        _list(most_unsure(analysis.comments, LISTED), analysis, "pass"),
    ]


def _list(comments: Sequence[Comment], analysis: Analysis, share: str = "agree") -> str:
    if not comments:
        return element("p", "There is none with enough votes.")
    return comment_list(comments, analysis.groups, share, analysis.language)


def _comments(analysis: Analysis, drawn: Analysis) -> list[str]:
    said = f"{analysis.moderated_out:,} more were kept out by the moderators." if analysis.moderated_out else ""
    if len(drawn.comments) < len(analysis.comments):
        said = f"The {len(drawn.comments):,} with the most votes of {len(analysis.comments):,}. {said}"
    return [
        element("p", text(said)) if said else "",
        vote_legend("votes"),
        every_comment(drawn.comments, analysis.language),
    ]


def _method(analysis: Analysis, narrative: Narrative, files: Sequence[str]) -> list[str]:
    facts = {
        **analysis.method,
        "Text": f"by {narrative.written_by}" if narrative.written_by else "made from the figures",
        **{f"Job {stage}": job_id for stage, job_id in analysis.jobs.items()},
        "Beside this report": ", ".join(files) or "nothing else was asked for",
    }
    rows = (
        element("tr", element("th", text(name), scope="row"), element("td", text(said))) for name, said in facts.items()
    )
    return [element("table", element("tbody", *rows), class_="facts")]
