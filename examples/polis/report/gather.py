"""Converts the rows of the stages to the model of a report."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from polis.findings import Findings
from polis.tables import CommentExtremity, GroupVotes

from .model import (
    Analysis,
    Certainty,
    Comment,
    Group,
    Layer,
    Participant,
    PolisMatch,
    Representative,
    Topic,
    Votes,
)

REPRESENTATIVES_PER_GROUP = 6
DISAGREES_AT_LEAST = 0.6  # share of a group that disagrees, for a comment that it clearly rejects …
DISAGREES_MORE_BY = 0.25  # … and by how much the others disagree less


def gathered(found: Findings) -> Analysis:
    conversation = found.conversation
    groups = [_group(int(each["group_id"]), int(each["size"]), found) for each in found.pca.summary["groups"]]
    return Analysis(
        conversation_id=conversation.conversation_id,
        title=conversation.title,
        participants=[
            Participant(each.participant_id, each.x, each.y, each.group_id, each.votes)
            for each in found.pca.participants
        ],
        comments=_comments(found),
        groups=groups,
        layers=_layers(found),
        edges=[(each.source, each.target) for each in found.umap.edges if each.nearest],
        votes=conversation.votes,
        moderated_out=conversation.moderated_out,
        asked=_span(conversation.first_vote_at, conversation.last_vote_at),
        variance=[float(each) for each in found.pca.summary.get("explained_variance", ())],
        method=_method(found),
        jobs={"PCA": found.pca.job_id, "UMAP": found.umap.job_id},
        certainty=Certainty(**found.pca.summary["certainty"]),
        match=_match(found),
        has_votes=conversation.has_votes,
        language=found.umap.summary.get("language"),
    )


def _comments(found: Findings) -> list[Comment]:
    places = {each.comment_id: (each.x, each.y) for each in found.umap.embeddings}
    clusters = {each.comment_id: tuple(each.clusters) for each in found.umap.assignments}
    voted = {each.comment_id: each for each in found.pca.comments}
    texts = {each.comment_id: each.body for each in found.umap.embeddings}
    texts |= {number: each.body for number, each in voted.items()}
    return [
        _comment(number, texts[number], voted.get(number), places.get(number), clusters.get(number, ()))
        for number in sorted(texts)
    ]


def _comment(
    number: int, text: str, row: CommentExtremity | None, place: tuple[float, float] | None, clusters: tuple[int, ...]
) -> Comment:
    if row is None:  # accepted, but without votes
        return Comment(number, text, Votes(), place=place, clusters=clusters)
    return Comment(
        comment_id=number,
        text=text,
        votes=Votes(row.agrees, row.disagrees, row.passes),
        by_group={int(group): Votes(v.agrees, v.disagrees, v.passes) for group, v in row.group_votes.items()},
        consensus=row.consensus,
        divisiveness=row.divisiveness,
        extremity=row.extremity,
        kind=row.kind,
        place=place,
        clusters=clusters,
        is_meta=row.is_meta,
    )


def _match(found: Findings) -> PolisMatch | None:
    match = found.pca.summary["agreement_with_polis"]
    if match is None:
        return None
    return PolisMatch(match["polis_groups"], match["people"], match["rand_index"], match["reasons"])


def _group(group_id: int, size: int, found: Findings) -> Group:
    """Return a group's representative comments, the most distinctive first; at most half are comments that it
    rejects."""
    agreed = [each for row in found.pca.comments if (each := _agreed(group_id, row))]
    rejected = [each for row in found.pca.comments if (each := _rejected(group_id, row))]
    agreed.sort(key=lambda each: (-each.score, each.comment_id))
    rejected.sort(key=lambda each: (-each.score, each.comment_id))
    room = max(REPRESENTATIVES_PER_GROUP - len(agreed), REPRESENTATIVES_PER_GROUP // 2)
    chosen = rejected[:room]
    return Group(group_id, size, [*agreed[: REPRESENTATIVES_PER_GROUP - len(chosen)], *chosen])


def _agreed(group_id: int, row: CommentExtremity) -> Representative | None:
    if group_id not in row.representative_of or row.is_meta:
        return None
    own, others = _own_and_others(group_id, row.group_votes)
    lead = own.agree_share - max((each.agree_share for each in others), default=0.0)
    return Representative(row.comment_id, True, _share(own.agrees, own), lead, _seen(own))


def _rejected(group_id: int, row: CommentExtremity) -> Representative | None:
    own, others = _own_and_others(group_id, row.group_votes)
    if not others or row.is_meta:
        return None
    share, most = _pulled(own), max(_pulled(each) for each in others)
    if share < DISAGREES_AT_LEAST or share - most < DISAGREES_MORE_BY:
        return None
    return Representative(row.comment_id, False, _share(own.disagrees, own), share - most, _seen(own))


def _own_and_others(group_id: int, votes: Mapping[str, GroupVotes]) -> tuple[GroupVotes, list[GroupVotes]]:
    nothing = GroupVotes(agrees=0, disagrees=0, passes=0, agree_share=0.5)
    return votes.get(str(group_id), nothing), [each for name, each in votes.items() if name != str(group_id)]


def _pulled(votes: GroupVotes) -> float:
    """Return the share that disagrees, pulled towards a half if few voted."""
    return (votes.disagrees + 1) / (votes.agrees + votes.disagrees + votes.passes + 2)


def _share(count: int, votes: GroupVotes) -> float:
    return count / max(1, _seen(votes))


def _seen(votes: GroupVotes) -> int:
    return votes.agrees + votes.disagrees + votes.passes


def _layers(found: Findings) -> list[Layer]:
    names = {each.topic_key: each.topic_name for each in found.umap.topics}
    layers: dict[int, list[Topic]] = {}
    for each in sorted(found.umap.clusters, key=lambda each: (each.layer, each.cluster_id)):
        name = names.get(each.cluster_key) or ", ".join(each.keywords[:3]) or f"Topic {each.cluster_id}"
        layers.setdefault(each.layer, []).append(Topic(each.cluster_id, name, each.keywords, each.size))
    return [Layer(number, topics) for number, topics in sorted(layers.items())]


def _method(found: Findings) -> dict[str, str]:
    umap, pca = found.umap.summary, found.pca.summary
    namer = str(umap.get("topic_names_by", "keywords"))
    return {
        "Embedding of the comments": f"{umap['embedding_model']}, {umap['dimensions']} dimensions",
        "Projection of the comment map": str(umap["projection"]),
        **(
            {
                "Projection of the opinion map": f"PCA, {pca['method']} solver",
                "Groups": "k-means of a hundred base clusters of participants with at least seven votes, as in Polis",
                **_certainty(pca["certainty"]),
                **_polis(pca),
            }
            if found.conversation.has_votes
            else {"Groups": "none: the export has no votes, only how often each comment was agreed with"}
        ),
        "Moderation": "strict: only accepted comments" if found.conversation.strict_moderation else "not strict",
        "Topic names": "made from keywords" if namer == "keywords" else f"by {namer}",
    }


def _certainty(certainty: Mapping[str, float | None]) -> dict[str, str]:
    silhouette, stability, by_chance = (certainty[name] for name in ("silhouette", "stability", "by_chance"))
    if silhouette is None or stability is None:
        return {}
    chance = f"; shuffled votes reach {by_chance:.2f}" if by_chance is not None else ""
    return {
        "Silhouette of the groups": f"{silhouette:.2f} (1: far apart, 0: touching everywhere{chance})",
        "Stability of the groups": f"{stability:.2f} (1: samples of 80% of the people have the same groups, 0: chance)",
    }


def _polis(pca: Mapping[str, Any]) -> dict[str, str]:
    said = {}
    if match := pca["agreement_with_polis"]:
        said["Agreement with Polis's own groups"] = (
            f"{match['rand_index']:.2f} (adjusted Rand index of {match['people']:,} people;"
            " 1: the same groups, 0: chance)"
        )
    if (correlation := pca["consensus_rank_correlation"]) is not None:
        said["Agreement with Polis's own consensus"] = f"{correlation:.3f} (Spearman's rank correlation)"
    return said


def _span(first: str, last: str) -> str:
    if not first or not last:
        return ""
    start, end = (datetime.fromisoformat(each) for each in (first, last))
    if start.date() == end.date():
        return f"{end:%-d %B %Y}"
    return f"{start:%-d %B %Y} to {end:%-d %B %Y}"
