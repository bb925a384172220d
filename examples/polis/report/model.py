"""The model of a report, as plain values; gather.py fills it from the rows of the earlier stages.

Coordinates may be on any scale: plots fit them to their frame. A participant without a group has the group None; a
comment that was not embedded has no place on the comment map, and belongs to no cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SEVERAL = 4  # topics


@dataclass(frozen=True, slots=True)
class Votes:
    agrees: int = 0
    disagrees: int = 0
    passes: int = 0

    @property
    def seen(self) -> int:
        return self.agrees + self.disagrees + self.passes

    def share(self, count: int) -> float:
        return count / self.seen if self.seen else 0.0


@dataclass(frozen=True, slots=True)
class Participant:
    participant_id: int
    x: float
    y: float
    group: int | None
    votes: int = 0


@dataclass(frozen=True, slots=True)
class Comment:
    comment_id: int
    text: str
    votes: Votes
    by_group: Mapping[int, Votes] = field(default_factory=dict)
    consensus: float = 0.0  # 0 to 1: how much all groups agree on it
    divisiveness: float = 0.0  # 0 to 1: how much the groups differ on it
    extremity: float = 0.0  # 0 to 1: how far it pulls participants apart on the opinion map
    kind: str = "mixed"  # or "consensus", "divisive"
    place: tuple[float, float] | None = None  # on the comment map
    clusters: tuple[int, ...] = ()  # its cluster on each layer, finest first; -1: none
    is_meta: bool = False  # about the participants: its votes say nothing about opinions


@dataclass(frozen=True, slots=True)
class Representative:
    """A comment that distinguishes a group from the others."""

    comment_id: int
    agrees: bool  # else the group disagrees with it
    share: float  # share of the group's votes on it
    score: float  # how much more than in the other groups
    votes: int  # that the group cast on it


@dataclass(frozen=True, slots=True)
class Group:
    group_id: int
    size: int
    representative: Sequence[Representative] = ()


@dataclass(frozen=True, slots=True)
class Certainty:
    """How certain the groups are."""

    clarity: str  # "clear", "uncertain" or "none"
    silhouette: float | None  # 1: groups are far apart; 0: they touch everywhere
    stability: float | None  # 1: any sample of the participants has the same groups; 0: each has others
    by_chance: float | None  # the silhouette of shuffled votes


@dataclass(frozen=True, slots=True)
class PolisMatch:
    """How the analysis matches the one in the export."""

    groups: int  # that Polis found
    people: int  # whom both have put in a group
    rand_index: float
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Topic:
    cluster_id: int
    name: str
    keywords: Sequence[str]
    size: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One level of the hierarchy of topics."""

    number: int  # 0 is the finest
    topics: Sequence[Topic]


@dataclass(frozen=True, slots=True)
class Narrative:
    """Texts by section: "summary", "groups", "consensus", "topics", "uncertainty"."""

    sections: Mapping[str, str]
    written_by: str  # a model's name, or "" if it was written from the figures
    language: str = "en"
    note: str = ""  # a note for the reader: for example, that the model did not answer


@dataclass(frozen=True, slots=True)
class Analysis:
    conversation_id: str
    title: str
    participants: Sequence[Participant]
    comments: Sequence[Comment]
    groups: Sequence[Group]
    layers: Sequence[Layer]
    edges: Sequence[tuple[int, int]] = ()  # comment ids that are neighbours by meaning
    votes: int = 0
    moderated_out: int = 0
    asked: str = ""  # when: "3 to 14 May 2026"
    variance: Sequence[float] = ()  # share of the variance that each axis of the opinion map explains
    method: Mapping[str, str] = field(default_factory=dict)  # what was used: "embedding model" -> "…"
    jobs: Mapping[str, str] = field(default_factory=dict)  # stage -> job id
    certainty: Certainty | None = None
    match: PolisMatch | None = None  # None: the export has no groups of Polis
    has_votes: bool = True  # False: the export has comments alone
    language: str | None = None  # of the comments, as far as known

    @property
    def main_layer(self) -> Layer | None:
        """Return the layer that the texts use: the coarsest with several topics."""
        several = [layer for layer in self.layers if len(layer.topics) >= SEVERAL]
        return several[-1] if several else next(iter(self.layers), None)
