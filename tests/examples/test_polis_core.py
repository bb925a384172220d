"""Reading a Polis export, and the maths of its analysis on conversations whose answer is known."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding import WeightsMissing
from polis.__main__ import from_database
from polis.agreement import agreement, consensus_rank_correlation
from polis.certainty import find_groups
from polis.clustering import cluster_key, layers_of
from polis.comments import comment_rows
from polis.conversations import folder_of
from polis.embeddings import embed, embedder, matrix
from polis.export import Export, ExportError, read_export
from polis.groups import NO_GROUP, opinion_map
from polis.language import language_of, stop_words, vocabulary, words_of
from polis.measure import write_conversation as write_conversation_of
from polis.neighbours import neighbour_graph
from polis.sample import write_sample
from polis.sample_comments import COMMENTS
from polis.tables import ClusterKeywords, CommentExtremity, Embedding
from polis.topic_names import by_keywords
from polis.topics import assignment_rows, cluster_rows, edge_rows, measured
from polis.umap_projection import project
from polis.votes import VoteMatrix, matrix_of
from threadpoolctl import threadpool_limits

from tests.examples.polis_conversation import BUSES, FOOD, TREES, two_groups, write_conversation


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the stages: on a busy machine threads of numpy wait for one another."""
    with threadpool_limits(1):
        yield


def counted(export: Export, max_votes: int = 1_000_000, batch_size: int = 50_000) -> VoteMatrix:
    return matrix_of(export, max_votes, batch_size, lambda share: None)


def analysed(export: Export) -> tuple[VoteMatrix, list[int], dict[int, CommentExtremity]]:
    votes = counted(export)
    opinions = opinion_map(votes, 2, "full")
    groups = find_groups(votes, opinions)
    rows = comment_rows(export.conversation_id, export, votes, opinions, groups)
    return votes, groups.labels.tolist(), {row.comment_id: row for row in rows}


# The export


def test_an_export_is_read_whole(tmp_path: Path) -> None:
    folder = two_groups(tmp_path)
    (folder / "summary.csv").write_text("topic,What now?\nurl,https://example.org\n")
    export = read_export(folder, "36324")
    assert (export.conversation_id, export.title) == ("36324", "What now?")
    assert [comment.body for comment in export.let_in] == [*BUSES, *TREES, *FOOD]
    assert len(export.votes) == 240


def test_an_export_that_a_spreadsheet_has_saved_is_read_too(tmp_path: Path) -> None:
    folder = write_conversation(tmp_path, ['He said "no",\r\n  and\x00 left', "Fine"], [(0, 0, 1), (1, 1, -1)])
    for path in folder.glob("*.csv"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_export(folder, "1").comments[0].body == 'He said "no", and left'


def test_an_export_in_todays_form_is_read(tmp_path: Path) -> None:
    """Without `datetime`, with `xid` and the new columns of comments, and with the name that the report page gives."""
    head = "timestamp,comment-id,author-id,agrees,disagrees,moderated,is-meta,is-seed,group-informed-consensus"
    (tmp_path / "comments.csv").write_text(
        f"{head},comment-body\n1700000000,0,5,2,1,1,false,true,0.62,Open it\n1700000001,1,6,1,0,1,true,false,,I am 20\n"
    )
    (tmp_path / "votes.csv").write_text("timestamp,comment-id,voter-id,vote\n1700000002,0,5,1\n1700000003,1,6,-1\n")
    (tmp_path / "participant-votes.csv").write_text(
        "participant,xid,group-id,n-comments,n-votes,n-agree,n-disagree,0,1\n5,abc-1,0,1,1,1,0,1,\n6,,1,1,1,0,1,,-1\n"
    )
    export = read_export(tmp_path, "1")
    opening, about_me = export.let_in
    assert (opening.is_seed, opening.is_meta, opening.polis_consensus) == (True, False, 0.62)
    assert (about_me.is_seed, about_me.is_meta, about_me.polis_consensus) == (False, True, None)
    assert (len(export.votes), export.polis_groups) == (2, {5: 0, 6: 1})


def test_with_strict_moderation_only_accepted_comments_count(tmp_path: Path) -> None:
    votes = [(voter, comment, 1) for voter in range(3) for comment in range(3)]
    folder = write_conversation(tmp_path, ["Accepted", "Not looked at", "Rejected"], votes, moderated=[2])
    replaced("comments.csv", "then,1,0,0,0,1,", "then,1,0,0,0,0,")(folder)
    lax = read_export(folder, "1")
    (folder / "summary.csv").write_text("topic,What now?\nstrict-moderation,true\n")
    strict = read_export(folder, "1")
    assert [comment.body for comment in lax.let_in] == ["Accepted", "Not looked at"]
    assert [comment.body for comment in strict.let_in] == ["Accepted"]
    assert counted(strict).comment_ids.tolist() == [0]
    assert strict.digest != lax.digest, "it is another analysis"


def test_an_export_that_declares_another_meaning_of_its_votes_is_refused(tmp_path: Path) -> None:
    folder = two_groups(tmp_path)
    (folder / "summary.csv").write_text("topic,A\nvote-convention,agree=+1;disagree=-1;pass=0;format=polis-export/1\n")
    assert len(read_export(folder, "1").votes) == 240
    (folder / "summary.csv").write_text("topic,A\nvote-convention,agree=-1;disagree=+1;pass=0\n")
    with pytest.raises(ExportError, match=r"declares votes as 'agree=-1;disagree=\+1;pass=0': only agree=\+1 is read"):
        read_export(folder, "1")


def test_an_export_of_comments_alone_is_read(tmp_path: Path) -> None:
    folder = two_groups(tmp_path)
    for name in ("votes.csv", "participants-votes.csv"):
        (folder / name).unlink()
    export = read_export(folder, "1")
    assert (len(export.let_in), len(export.votes), export.polis_groups) == (12, 0, {})


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return spoil


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


OF_ANOTHER = b"timestamp,datetime,comment-id,voter-id,vote\n1700000000,then,99,0,1\n"
RUBBISH: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda folder: (folder / "votes.csv").unlink(), "votes.csv is missing"),
    "empty file": (written("votes.csv", b""), "votes.csv is empty"),
    "no column": (replaced("votes.csv", "voter-id", "who"), "line 1 lacks the column voter-id"),
    "column twice": (replaced("votes.csv", "datetime", "vote"), "line 1"),
    "short line": (replaced("votes.csv", ",then,0,0,1", ",then"), "line 2: 2 values where the first line names 5"),
    "no number": (replaced("votes.csv", "then,0,0,1", "then,zero,0,1"), "line 2: comment-id is 'zero'"),
    "huge number": (replaced("votes.csv", "then,0,0,1", f"then,0,{10**30},1"), "line 2: voter-id"),
    "half a vote": (replaced("votes.csv", "then,0,0,1", "then,0,0,2"), "line 2: vote is 2"),
    "no time": (replaced("votes.csv", "1700000000,", "-5,"), "line 2: timestamp is -5"),
    "no votes": (written("votes.csv", b"timestamp,datetime,comment-id,voter-id,vote"), "no votes"),
    "binary": (written("comments.csv", b"\x89PNG\xff\xfe\x00"), "comments.csv is not UTF-8"),
    "open quote": (replaced("comments.csv", "Fresh bread", '"Fresh bread'), "comments.csv line"),
    "comment twice": (replaced("comments.csv", "then,1,", "then,0,"), "line 3: comment 0 is there twice"),
    "too long": (replaced("comments.csv", BUSES[0], "日" * 70_000), "line 2: comment 0 has over 200,000 bytes of text"),
    "no text": (replaced("comments.csv", BUSES[0], "  "), "line 2: comment 0 has no text"),
    "moderated": (replaced("comments.csv", "0,0,0,1,", "0,0,0,7,"), "line 2: moderated is 7"),
    "person twice": (replaced("participants-votes.csv", "\n1,", "\n0,"), "participant 0 is there twice"),
    "other conversation": (written("votes.csv", OF_ANOTHER), "of one conversation"),
}  # fmt: skip


@pytest.mark.parametrize("case", RUBBISH)
def test_a_file_that_is_no_export_is_refused_with_its_place_and_the_reason(tmp_path: Path, case: str) -> None:
    spoil, reason = RUBBISH[case]
    folder = two_groups(tmp_path)
    spoil(folder)
    with pytest.raises(ExportError, match=reason) as raised:
        read_export(folder, "1")
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("conversation_id", [None, "", "../secrets", "/etc", "a/b", ".hidden", "x" * 200])
def test_only_an_id_names_the_folder_of_a_conversation(conversation_id: str | None) -> None:
    with pytest.raises(ExportError):
        folder_of(conversation_id)
    if conversation_id:
        with pytest.raises(ExportError):
            from_database(Path("demo"), "postgresql://nowhere", conversation_id, strict=False)


def test_the_sample_is_an_export_and_the_same_each_time(tmp_path: Path) -> None:
    first = read_export(write_sample(tmp_path / "one"), "1")
    second = read_export(write_sample(tmp_path / "two"), "1")
    assert first.digest == second.digest
    assert len(first.let_in) == len(COMMENTS) >= 40
    assert len(np.unique(first.votes.voter_ids)) == 300


def test_a_made_up_conversation_has_about_as_many_votes_as_were_asked_for(tmp_path: Path) -> None:
    for votes, people, comments in ((1_000, 50, 20), (20_000, 500, 40)):
        export = read_export(write_conversation_of(tmp_path / str(votes), votes), "1")
        assert len(export.votes) == votes
        assert (len(np.unique(export.votes.voter_ids)), len(export.let_in)) == (people, comments)


# Votes


@pytest.mark.parametrize("batch_size", [1, 2, 1_000])
def test_the_last_vote_of_a_participant_on_a_comment_counts(tmp_path: Path, batch_size: int) -> None:
    votes = [(7, 0, 1), (7, 1, 1), (8, 0, 0), (7, 0, 0), (8, 0, 1), (7, 0, -1)]
    folder = write_conversation(tmp_path, ["A first one", "A second one"], votes)
    shares: list[float] = []
    matrix = matrix_of(read_export(folder, "1"), 1_000_000, batch_size, shares.append)
    assert len(shares) == -(-len(votes) // batch_size) and shares[-1] == 1, "told after each batch"
    assert matrix.participant_ids.tolist() == [7, 8]
    assert matrix.cells[:, 0].tolist() == [-1, 1]


def test_the_time_of_a_vote_decides_and_not_its_line(tmp_path: Path) -> None:
    folder = write_conversation(tmp_path, ["A first one", "A second one"], [(7, 0, 1), (7, 1, 1), (7, 0, -1)])
    head, *lines = (folder / "votes.csv").read_text().splitlines()
    (folder / "votes.csv").write_text("\n".join([head, *reversed(lines)]))
    assert counted(read_export(folder, "1")).cells.tolist() == [[-1, 1]]


def test_of_too_many_votes_the_last_are_counted(tmp_path: Path) -> None:
    votes = [(voter, comment, 1) for voter in range(4) for comment in range(2)]
    matrix = counted(read_export(write_conversation(tmp_path, ["One", "Two"], votes), "1"), max_votes=4)
    assert (matrix.counted, matrix.participant_ids.tolist()) == (4, [2, 3])


def test_a_comment_that_moderators_kept_out_is_not_analysed(tmp_path: Path) -> None:
    votes = [(voter, comment, 1) for voter in range(3) for comment in range(3)]
    export = read_export(write_conversation(tmp_path, ["One", "Spam", "Two"], votes, moderated=[1]), "1")
    assert [comment.comment_id for comment in export.let_in] == [0, 2]
    assert counted(export).comment_ids.tolist() == [0, 2]


# Opinion groups


def test_two_clear_groups_are_found(tmp_path: Path) -> None:
    _, labels, _ = analysed(read_export(two_groups(tmp_path), "1"))
    assert labels in ([0] * 10 + [1] * 10, [1] * 10 + [0] * 10)


@pytest.mark.parametrize("method", ["randomized", "full", "arpack"])
def test_the_three_groups_of_the_sample_are_found_by_every_method(tmp_path: Path, method: str) -> None:
    export = read_export(write_sample(tmp_path, participants=150), "1")
    votes = counted(export)
    opinions = opinion_map(votes, 2, method)
    assert opinions.solver == method
    groups = find_groups(votes, opinions)
    assert groups.count == 3
    assert groups.sizes() == sorted(groups.sizes(), reverse=True)
    found = agreement(votes, opinions.places, groups, export.polis_groups)
    assert found is not None and found.rand_index > 0.8


def test_who_has_voted_too_seldom_is_on_the_map_but_in_no_group(tmp_path: Path) -> None:
    folder = two_groups(tmp_path)
    with (folder / "votes.csv").open("a") as file:
        file.write("1700009999,then,0,99,1\n")
    votes, labels, _ = analysed(read_export(folder, "1"))
    assert votes.participant_ids[-1] == 99
    assert labels[-1] == NO_GROUP and NO_GROUP not in labels[:-1]


@pytest.mark.parametrize(("voters", "comments"), [(1, 1), (1, 3), (3, 1), (30, 4)])
def test_a_conversation_without_differences_is_one_group(tmp_path: Path, voters: int, comments: int) -> None:
    votes = [(voter, comment, 1) for voter in range(voters) for comment in range(comments)]
    export = read_export(write_conversation(tmp_path, ["A comment"] * comments, votes), "1")
    _, labels, rows = analysed(export)
    assert labels == [0] * voters
    assert {row.extremity for row in rows.values()} == {0.0}


def people(
    opinions: int, *, voters: int = 120, comments: int = 40, seed: int = 1
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """People who hold one of so many opinions vote on half of the comments. Returned with who holds which."""
    dice = np.random.default_rng(seed)
    likely = dice.uniform(0.05, 0.95, (opinions, comments))
    held = dice.integers(0, opinions, voters)
    votes = [
        (voter, comment, 1 if dice.random() < likely[held[voter], comment] else -1)
        for voter in range(voters)
        for comment in range(comments)
        if dice.random() < 0.5
    ]
    return votes, dict(enumerate(held.tolist()))


def judged(folder: Path, votes: list[tuple[int, int, int]], groups: dict[int, int] | None = None) -> tuple[Any, Any]:
    bodies = [f"Comment {number}" for number in range(40)]
    export = read_export(write_conversation(folder, bodies, votes, groups=groups), "1")
    matrix = counted(export)
    opinions = opinion_map(matrix, 2, "full")
    found = find_groups(matrix, opinions)
    return found, agreement(matrix, opinions.places, found, export.polis_groups)


def test_groups_that_exist_are_clear_and_those_of_votes_at_random_are_not(tmp_path: Path) -> None:
    clear, _ = judged(tmp_path / "two", people(2)[0])
    vague, _ = judged(tmp_path / "one", people(1)[0])
    assert (clear.count, clear.clarity, vague.clarity) == (2, "clear", "none")
    assert clear.stability > 0.9 > 0.6 > vague.stability
    assert clear.silhouette > clear.by_chance


def test_groups_that_match_those_of_polis_are_said_to_and_others_with_the_reason(tmp_path: Path) -> None:
    votes, held = people(2)
    _, same = judged(tmp_path / "same", votes, held)
    assert same.rand_index > 0.95 and same.reasons == []
    _, other = judged(tmp_path / "other", votes, {voter: voter % 2 for voter in held})
    assert other.rand_index < 0.1 and "overlap on the map" in other.reasons[0]
    few = [(voter, comment, 1) for voter in range(200, 230) for comment in range(3)]
    early = {voter: voter % 2 for voter in [*held, *range(200, 230)]}
    _, early_ones = judged(tmp_path / "few", [*votes, *few], early)
    assert early_ones.reasons[0].startswith("30 of the 150 people in Polis's groups have fewer than 7 votes")


def test_the_number_of_groups_is_the_smaller_one_unless_the_larger_is_clearly_better(tmp_path: Path) -> None:
    three, _ = judged(tmp_path / "three", people(3, voters=200)[0])
    assert three.count == 3
    chosen, _ = judged(tmp_path / "two", people(2)[0])
    assert chosen.count == 2 and set(chosen.others) == {2, 3, 4, 5}


def test_a_comment_that_was_removed_counts_as_one_on_which_all_passed(tmp_path: Path) -> None:
    """As in Polis: without this, hardly any group of a conversation with many removed comments would match."""
    votes = [(voter, comment, 1 if voter % 2 else -1) for voter in range(20) for comment in range(8) if voter + comment]
    bodies = [f"Comment {number}" for number in range(8)]
    kept = counted(read_export(write_conversation(tmp_path / "a", bodies[:7], [v for v in votes if v[1] < 7]), "1"))
    one_out = counted(read_export(write_conversation(tmp_path / "b", bodies, votes, moderated=[7]), "1"))
    before, after = (opinion_map(each, 2, "full").places[:, 0] for each in (kept, one_out))
    factors = np.abs(after / before)
    assert one_out.left_out == 1 and one_out.cast.tolist() == [7] + [8] * 19
    assert factors[1:] == pytest.approx(1)
    assert factors[0] == pytest.approx(np.sqrt(8 / 7) / np.sqrt(7 / 6))


def test_a_comment_about_the_participants_moves_nobody_on_the_map(tmp_path: Path) -> None:
    folder = two_groups(tmp_path)
    lines = (folder / "comments.csv").read_text().splitlines()
    marked = [lines[0] + ",is-meta", *(f"{line},{'true' if n == 0 else 'false'}" for n, line in enumerate(lines[1:]))]
    (folder / "comments.csv").write_text("\n".join(marked))
    _, _, rows = analysed(read_export(folder, "1"))
    assert rows[0].is_meta and rows[0].components == [0, 0] and (rows[0].agrees, rows[0].disagrees) == (10, 10)
    assert not rows[1].is_meta and rows[1].extremity == pytest.approx(1)


# Comments


def test_the_consensus_is_compared_with_that_of_polis_by_rank(tmp_path: Path) -> None:
    _, _, rows = analysed(read_export(two_groups(tmp_path), "1"))
    alike = {number: row.consensus / 2 for number, row in rows.items()}
    assert consensus_rank_correlation(list(rows.values()), alike) == pytest.approx(1)
    opposite = {number: 1 - row.consensus for number, row in rows.items()}
    assert consensus_rank_correlation(list(rows.values()), opposite) == pytest.approx(-1)
    assert consensus_rank_correlation(list(rows.values()), {}) is None


def test_consensus_is_told_from_what_divides(tmp_path: Path) -> None:
    _, labels, rows = analysed(read_export(two_groups(tmp_path), "1"))
    likes_buses = labels[0]
    bus, tree, food = rows[0], rows[4], rows[8]
    assert (bus.kind, tree.kind, food.kind) == ("divisive", "divisive", "consensus")
    assert bus.group_votes[str(likes_buses)].model_dump() == {
        "agrees": 10, "disagrees": 0, "passes": 0, "agree_share": pytest.approx(11 / 12),
    }  # fmt: skip
    assert bus.divisiveness == pytest.approx(10 / 12)
    assert food.divisiveness == 0
    assert food.consensus == pytest.approx(11 / 12)
    assert bus.consensus == pytest.approx((11 / 12 * 1 / 12) ** 0.5)
    assert (bus.agrees, bus.disagrees, bus.passes) == (10, 10, 0)


def test_extremity_is_how_far_a_comment_pulls_people_apart(tmp_path: Path) -> None:
    _, _, rows = analysed(read_export(two_groups(tmp_path), "1"))
    assert all(rows[number].extremity == pytest.approx(1) for number in range(8))
    assert all(rows[number].extremity == pytest.approx(0, abs=1e-9) for number in range(8, 12))


def test_a_group_is_represented_by_what_it_alone_agrees_with(tmp_path: Path) -> None:
    _, labels, rows = analysed(read_export(two_groups(tmp_path), "1"))
    buses, trees = labels[0], labels[-1]
    assert [rows[number].representative_of for number in (0, 4, 8)] == [[buses], [trees], []]


# The comment map


def two_bunches() -> np.ndarray:
    dice = np.random.default_rng(1)
    ends = np.repeat(np.eye(2, 16), 15, axis=0)
    return ends + dice.normal(scale=0.05, size=ends.shape)


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "manhattan"])
def test_comments_that_mean_the_same_stand_together(metric: str) -> None:
    vectors = two_bunches()
    graph = neighbour_graph(vectors, 5, metric)
    ends = np.stack([vectors[graph.sources], vectors[graph.targets]])
    measured = {
        "cosine": 1 - (ends[0] * ends[1]).sum(axis=1) / np.linalg.norm(ends, axis=2).prod(axis=0),
        "euclidean": np.linalg.norm(ends[0] - ends[1], axis=1),
        "manhattan": np.abs(ends[0] - ends[1]).sum(axis=1),
    }
    assert graph.distances == pytest.approx(measured[metric])
    places, _ = project(vectors, graph, 2, 5, 0.1, metric)
    one, other = places[:15], places[15:]
    within = max(np.linalg.norm(bunch - bunch.mean(axis=0), axis=1).max() for bunch in (one, other))
    assert np.linalg.norm(one.mean(axis=0) - other.mean(axis=0)) > 2 * within


def test_the_map_is_the_same_each_time_and_min_dist_spreads_it() -> None:
    vectors = two_bunches()
    graph = neighbour_graph(vectors, 5, "cosine")

    def nearest(min_dist: float) -> float:
        places, _ = project(vectors, graph, 2, 5, min_dist, "cosine")
        distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.eye(len(places)) * 9
        return float(np.median(distances.min(axis=1)))

    assert nearest(0.1) == nearest(0.1)
    assert nearest(0.9) > nearest(0.01)


def test_an_edge_stands_once_with_a_weight_and_the_nearest_neighbour_is_sure(tmp_path: Path) -> None:
    export = read_export(two_groups(tmp_path), "1")
    vectors = two_bunches()[9:21]
    graph = neighbour_graph(vectors, 3, "euclidean")
    edges = edge_rows("1", export.let_in, graph)
    assert len({edge.edge_id for edge in edges}) == len(edges)
    assert all(edge.source < edge.target and edge.edge_id == f"{edge.source}_{edge.target}" for edge in edges)
    assert all(0 < edge.weight <= 1 for edge in edges)
    assert all(edge.weight == pytest.approx(1) for edge in edges if edge.nearest)
    first = edges[0]
    assert first.distance == pytest.approx(np.linalg.norm(vectors[first.source] - vectors[first.target]))
    for neighbours in (1, 3, 11):  # each comment is joined to so many at least, and the graph has no more than these
        wider = edge_rows("1", export.let_in, neighbour_graph(vectors, neighbours, "euclidean"))
        joined = Counter(end for edge in wider for end in (edge.source, edge.target))
        assert min(joined.values()) >= neighbours and len(wider) <= neighbours * len(vectors)


def test_clusters_of_a_layer_lie_within_those_of_the_next() -> None:
    layers = layers_of(np.random.default_rng(2).normal(size=(90, 2)))
    assert [layer.count for layer in layers] == [18, 9, 5]
    for finer, coarser in pairwise(layers):
        for cluster in range(finer.count):
            assert len(np.unique(coarser.labels[finer.labels == cluster])) == 1


def test_a_cluster_has_the_words_that_tell_it_from_the_others(tmp_path: Path) -> None:
    export = read_export(two_groups(tmp_path), "1")
    places = np.random.default_rng(3).normal(scale=0.1, size=(12, 2))
    places[:4] += 5
    layers = measured(places, layers_of(places))
    words = vocabulary([comment.body for comment in export.let_in], "en")
    clusters = {row.cluster_key: row for row in cluster_rows("1", export.let_in, layers, words)}
    assignments = {row.comment_id: row for row in assignment_rows("1", export.let_in, layers)}
    of_buses = clusters[cluster_key(0, assignments[0].clusters[0])]
    assert of_buses.keywords[0] == "bus"
    assert of_buses.children == [] and of_buses.parent is None
    assert set(of_buses.sample_comments) >= {0, 1, 2, 3}
    assert all(len(row.clusters) == len(row.confidence) == len(layers) for row in assignments.values())


def test_what_is_too_long_to_be_a_word_names_no_topic() -> None:
    assert words_of(f"benches {'x' * 61} {'y' * 60} https://example.org/word", "en") == ["benches", "y" * 60]


SAID = {
    "en": ("Endangered species need the river", "A species of fish lives in our river", {"species", "river", "fish"}),
    "de": ("Wir sollten die Bäume gießen", "Alte Bäume brauchen Wasser", {"Bäume", "Wasser", "gießen"}),
    "fr": ("Les arbres donnent de l'ombre", "Il faut planter des arbres", {"arbres", "ombre", "planter"}),
    "ru": ("Нужно больше автобусов вечером", "В парке мало деревьев", {"автобусов", "деревьев", "парке"}),
    "zh": ("晚上应该增加公交车的班次", "公园里需要更多的树荫", {"公交车", "班次", "公园", "树荫"}),
    "zh-Hant": ("計程車司機應該加入保險", "政府應該修法讓司機納稅", {"司機", "保險", "政府", "修法"}),
    "ja": ("夜のバスをもっと増やしてほしい", "公園に木を植えて、夏の日陰を作るべきだ", {"バス", "公園", "日陰"}),
}


@pytest.mark.parametrize("language", SAID)
def test_topics_are_named_by_words_of_the_language_that_people_wrote_in(language: str) -> None:
    """As they wrote them: neither by stems nor by words such as "should", and Chinese without spaces is split too."""
    *texts, expected = SAID[language]
    assert language_of(texts) == language
    words = vocabulary(texts, language)
    assert expected <= set(words.forms.values())
    assert not {each.casefold() for each in words.forms.values()} & stop_words(language)


def test_forms_of_one_word_are_counted_together_and_called_as_most_people_write_them() -> None:
    words = vocabulary(["More buses", "A bus", "Buses for all", "Two buses a day", "EU money", "The EU pays"], "en")
    assert words.texts[0] == words.texts[1] == words.texts[2]
    assert words.forms[words.texts[0][0]] == "buses"
    assert "EU" not in words.forms.values(), "two letters are too few to tell"
    names = by_keywords([cluster_of(["öffentlicher Verkehr", "CO2", "PKW"])], "de")
    assert names == {"layer0_0": "Öffentlicher Verkehr, CO2, PKW"}
    assert by_keywords([cluster_of(["公交车", "班次", "晚上"])], "zh") == {"layer0_0": "公交车、班次、晚上"}


def cluster_of(keywords: list[str]) -> ClusterKeywords:
    return ClusterKeywords(
        cluster_key="layer0_0",
        conversation_id="1",
        layer=0,
        cluster_id=0,
        size=3,
        x=0,
        y=0,
        keywords=keywords,
        keyword_weights=[1.0] * len(keywords),
        sample_comments=[],
        parent=None,
        children=[],
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_very_few_comments_have_a_map_too(tmp_path: Path, count: int) -> None:
    bodies = ["A word", "Another word", "???", "x", "12"][:count]
    export = read_export(write_conversation(tmp_path, bodies, [(0, 0, 1)]), "1")
    vectors = np.random.default_rng(4).normal(size=(count, 8))
    graph = neighbour_graph(vectors, 15, "cosine")
    places, _ = project(vectors, graph, 2, 15, 0.1, "cosine")
    assert places.shape == (count, 2) and np.isfinite(places).all()
    layers = measured(places, layers_of(places))
    words = vocabulary(bodies, "en")
    assert [row.size for row in cluster_rows("1", export.let_in, layers, words)] == [count]


# Embeddings


def test_the_model_that_is_asked_for_makes_the_vectors_and_is_named_beside_them() -> None:
    log = logging.getLogger("polis.test")
    for asked, name, dimensions in (
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2", 384),
        ("wordllama", "wordllama-l2-supercat-256", 256),
    ):
        [vector] = embed(embedder(asked, log), ["More buses in the evening"], lambda share: None)
        assert (vector.model, vector.dimensions, len(vector.vector)) == (name, dimensions, dimensions)
        assert sum(number**2 for number in vector.vector) == pytest.approx(1, abs=1e-4)


def test_the_small_model_takes_over_where_the_large_one_is_not_installed_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise WeightsMissing("no weights here")

    monkeypatch.setattr("polis.embeddings.MiniLM", missing)
    assert embedder("all-MiniLM-L6-v2", logging.getLogger("polis.test")).name == "wordllama-l2-supercat-256"
    assert "using wordllama instead of all-MiniLM-L6-v2" in caplog.text


def test_what_all_comments_share_does_not_make_them_neighbours() -> None:
    common, own = np.array([5.0, 0.0, 0.0]), np.array([[0, 1, 0], [0, 0.9, 0.1], [0, -1, 0], [0, -0.9, 0.1]])
    vectors = [Embedding(vector=list(common + each), dimensions=3, model="m") for each in own]
    taken_out = matrix(vectors, "cosine")
    assert neighbour_graph(taken_out, 1, "cosine").nearest.tolist() == [1, 0, 3, 2]
    assert (matrix(vectors, "euclidean")[:, 0] == 5).all()
