"""Common code of all plots, and the opinion map.

Plots are SVG in the page. They have no colours of their own: style.css gives them, in light and dark. A dot has a
tooltip.
"""

from collections.abc import Iterable, Sequence

from .markup import element, number, text
from .model import Analysis, Group, Participant
from .shapes import Frame, Label, Point, hull, middle, place_labels
from .words import counted, group_name, percent

MAP = Frame(860, 540)
GROUP_COLOURS = 8  # that the style sheet has
PEOPLE_MAX = 3_000  # dots; more would hide one another, and make the page slow
GROUP_NAME_SIZE = 21.0


def figure(width: float, height: float, label: str, *parts: str) -> str:
    """Return a figure. `label` is for screen readers."""
    return element(
        "svg", *parts, viewBox=f"0 0 {number(width)} {number(height)}", role="img", aria_label=label, class_="plot"
    )


def group_class(group: int | None) -> str:
    return "none" if group is None else f"g{group % GROUP_COLOURS}"


def label_text(label: Label, size: float, kind: str, style: str | None = None) -> str:
    top = label.y - (len(label.lines) - 1) * size * 0.6 + size * 0.35
    lines = (
        element("tspan", text(line), x=label.x, y=top + place * size * 1.2) for place, line in enumerate(label.lines)
    )
    return element("text", *lines, class_=kind, style=style)


def area(corners: Sequence[Point], kind: str, style: str | None = None) -> str:
    """Return a soft shape behind the dots of a group."""
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in corners) + "Z"
    return element("path", d=path, class_=f"hull {kind}", style=style) if corners else ""


def opinion_map(analysis: Analysis) -> str:
    """Return the map of participants by their votes, coloured by opinion group."""
    shown = _spread(analysis.participants, PEOPLE_MAX)
    points = MAP.fit([(each.x, each.y) for each in shown])
    by_group = {
        group.group_id: [point for each, point in zip(shown, points, strict=True) if each.group == group.group_id]
        for group in analysis.groups
    }
    return figure(
        MAP.width,
        MAP.height,
        f"Map of {counted(len(shown), 'participant')} in {counted(len(analysis.groups), 'opinion group')}",
        *(area(hull(by_group[group.group_id]), group_class(group.group_id)) for group in analysis.groups),
        *(_person(each, point) for each, point in zip(shown, points, strict=True)),
        *_names(analysis.groups, by_group),
    )


def _spread(people: Sequence[Participant], at_most: int) -> list[Participant]:
    """Return all items, or an even sample of the list."""
    step = max(1.0, len(people) / at_most)
    return [people[int(place * step)] for place in range(min(len(people), at_most))]


def _person(each: Participant, point: Point) -> str:
    group = "no group" if each.group is None else group_name(each.group)
    told = element("title", text(f"Participant {each.participant_id}, {group}, {counted(each.votes, 'vote')}"))
    return element("circle", told, cx=point[0], cy=point[1], r=4.2, class_=f"person {group_class(each.group)}")


def _names(groups: Sequence[Group], by_group: dict[int, list[Point]]) -> Iterable[str]:
    everyone = sum(group.size for group in groups)
    present = [group for group in groups if by_group[group.group_id]]
    wanted = [
        (middle(by_group[each.group_id]), f"{group_name(each.group_id)} · {percent(each.size / everyone)}")
        for each in present
    ]
    for group, label in zip(present, place_labels(wanted, MAP, GROUP_NAME_SIZE, letters=40), strict=True):
        if label is not None:
            yield label_text(label, GROUP_NAME_SIZE, f"group-name {group_class(group.group_id)}")
