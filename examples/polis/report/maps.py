"""Maps of the comments: by topic, one per layer, and by whether they unite or divide.

A click on a dot opens its comment, which also works on a phone, without hovering.
"""

from collections.abc import Iterable

from .choice import most_agreed, most_divisive
from .colours import by_size, topic_hues
from .markup import element, number, text
from .model import Analysis, Comment, Layer
from .plots import MAP, area, figure, label_text
from .shapes import Point, columns, hull, middle, place_labels
from .words import counted, percent

TOPIC_NAME_SIZE = 15.0
NUMBERED = 6  # comments at either end whose numbers are on the map


def comment_map(analysis: Analysis, layer: Layer, *, names: bool = True, edges: bool = True) -> str:
    """Return the map of comments by meaning, coloured by topic on this layer."""
    points = _points(analysis)
    hues = topic_hues(analysis, layer)
    clusters = _clusters(analysis, layer)
    dots = (
        _dot(each, points[each.comment_id], "topic", f"--hue:{hues[clusters[each.comment_id]]}")
        if clusters.get(each.comment_id) in hues
        else _dot(each, points[each.comment_id], "none")
        for each in analysis.comments
        if each.comment_id in points
    )
    return figure(
        MAP.width,
        MAP.height,
        f"Map of {counted(len(points), 'comment')} in {counted(len(layer.topics), 'topic')}",
        *_hulls(layer, points, clusters, hues),
        _edges(analysis, points) if edges else "",
        *dots,
        *(_names(layer, points, clusters, hues) if names else ()),
    )


def agreement_map(analysis: Analysis) -> str:
    """Return the same map, coloured by whether a comment unites or divides the groups."""
    points = _points(analysis)
    ends = [*most_agreed(analysis.comments, NUMBERED), *most_divisive(analysis.comments, NUMBERED)]
    wanted = [(points[each.comment_id], str(each.comment_id)) for each in ends if each.comment_id in points]
    labels = (label for label in place_labels([((x, y - 15), said) for (x, y), said in wanted], MAP, 14.0) if label)
    return figure(
        MAP.width,
        MAP.height,
        "Map of the comments that unite and of those that divide",
        _edges(analysis, points),
        *(_dot(each, points[each.comment_id], *_lean(each)) for each in analysis.comments if each.comment_id in points),
        *(label_text(label, 14.0, "comment-number") for label in labels),
    )


def agreement_columns(analysis: Analysis) -> str:
    """Return every comment on an axis: agreement of the groups on the left, division on the right."""
    voted = [each for each in analysis.comments if each.votes.seen]
    widest = max((each.divisiveness for each in voted), default=1.0) or 1.0
    radius = max(2.0, min(7.0, 90 / max(1, len(voted)) ** 0.5))
    ranked = sorted(voted, key=lambda each: (each.divisiveness, each.comment_id))
    points = columns([each.divisiveness / widest for each in ranked], MAP.width, 45, radius)
    base = 24 - min((y for _, y in points), default=0.0) + radius
    dots = (_dot(each, (x, y + base), *_lean(each), radius=radius) for each, (x, y) in zip(ranked, points, strict=True))
    line = base + radius + 8
    axis = element("line", x1=30, x2=MAP.width - 30, y1=line, y2=line, class_="axis")
    ends = (
        element("text", "groups say the same", x=30, y=line + 29, class_="axis-name"),
        element("text", "groups are apart", x=MAP.width - 30, y=line + 29, class_="axis-name end"),
    )
    label = f"{counted(len(voted), 'comment')} by how far the groups are apart on them"
    return figure(MAP.width, line + 42, label, axis, *ends, *dots)


def told(each: Comment) -> str:
    votes = each.votes
    return (
        f"[{each.comment_id}] {each.text}\n{percent(votes.share(votes.agrees))} agree, "
        f"{percent(votes.share(votes.disagrees))} disagree, {percent(votes.share(votes.passes))} pass"
        f" · {counted(votes.seen, 'vote')}"
    )


def _points(analysis: Analysis) -> dict[int, Point]:
    places = {each.comment_id: each.place for each in analysis.comments if each.place is not None}
    return dict(zip(places, MAP.fit(list(places.values())), strict=True))


def _clusters(analysis: Analysis, layer: Layer) -> dict[int, int]:
    depth = analysis.layers.index(layer)
    return {each.comment_id: each.clusters[depth] for each in analysis.comments if depth < len(each.clusters)}


def _edges(analysis: Analysis, points: dict[int, Point]) -> str:
    """Return all edges as one path: thousands of separate lines would be slow."""
    drawn = [(points[a], points[b]) for a, b in analysis.edges if a in points and b in points]
    path = "".join(f"M{number(a[0])} {number(a[1])}L{number(b[0])} {number(b[1])}" for a, b in drawn)
    return element("path", d=path, class_="edges") if path else ""


def _dot(each: Comment, point: Point, kind: str, style: str | None = None, radius: float = 0.0) -> str:
    size = radius or 4.0 + min(5.5, each.votes.seen**0.5 / 3)
    dot = element("circle", cx=point[0], cy=point[1], r=size, class_=f"dot {kind}", style=style)
    # Not focusable by Tab, which would stop at every dot of every map; the list below has them all.
    return element("a", element("title", text(told(each))), dot, href=f"#c{each.comment_id}", tabindex="-1")


def _hulls(layer: Layer, points: dict[int, Point], clusters: dict[int, int], hues: dict[int, int]) -> Iterable[str]:
    for topic in layer.topics:
        corners = hull([point for number, point in points.items() if clusters.get(number) == topic.cluster_id], 1.0)
        yield area(corners, "topic", f"--hue:{hues[topic.cluster_id]}")


def _lean(each: Comment) -> tuple[str, str]:
    """Return the strength of the colour: how strongly it unites or divides."""
    if each.kind == "mixed":
        return "mixed", "--strength:1"
    strength = each.consensus if each.kind == "consensus" else each.divisiveness
    return each.kind, f"--strength:{min(1.0, 0.35 + 0.65 * strength):.2f}"


def _names(layer: Layer, points: dict[int, Point], clusters: dict[int, int], hues: dict[int, int]) -> Iterable[str]:
    """Return the names of the topics, the largest first, if there is room. On a narrow screen, numbers replace them;
    the list below the map explains those."""
    found = []
    for rank, topic in enumerate(by_size(layer), 1):
        inside = [point for number, point in points.items() if clusters.get(number) == topic.cluster_id]
        if inside:
            found.append((middle(inside), topic, rank))
    dots = list(points.values())
    labels = place_labels([(point, topic.name) for point, topic, _ in found], MAP, TOPIC_NAME_SIZE, dots=dots)
    for ((x, y), topic, rank), label in zip(found, labels, strict=True):
        hue = f"--hue:{hues[topic.cluster_id]}"
        if label is not None:
            yield label_text(label, TOPIC_NAME_SIZE, "topic-name", hue)
        yield element("text", str(rank), x=x, y=y + 10, class_="topic-number", style=hue)
