"""The pages of a Polis report, as a browser shows them; every text in them would run if a page let it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from polis.configs import ReportConfig
from polis.report import build
from polis.report.model import (
    Analysis,
    Certainty,
    Comment,
    Group,
    Layer,
    Narrative,
    Participant,
    PolisMatch,
    Representative,
    Topic,
    Votes,
)
from polis.report.shapes import Frame, columns, hull, place_labels
from polis.sentences import sentences

from tests.dashboard.browser.conftest import browser as browser
from tests.dashboard.browser.watch import watched
from tests.dashboard.vectors import VECTORS

in_the_browser = pytest.mark.asyncio(loop_scope="session")
NAMES = ("basic", "enhanced", "multilayer")
DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}


def hostile() -> Analysis:
    """As many comments as there are texts that would run; the same ones name everything else."""
    comments = [
        Comment(
            *(n, text, Votes(6 + n % 9, 9 - n % 9, n % 4)),
            by_group={0: Votes(3 + n % 5, 2, 1), 1: Votes(1, 4 + n % 5, n % 3)},
            consensus=n / len(VECTORS),
            divisiveness=1 - n / len(VECTORS),
            extremity=0.5,
            kind=("consensus", "mixed", "divisive")[n % 3],
            place=(math.cos(n), math.sin(2 * n)),
            clusters=(n % 8, n % 4),
        )
        for n, text in enumerate(VECTORS)
    ]
    layers = [
        Layer(0, [Topic(n, VECTORS[n], VECTORS[n : n + 3], 9) for n in range(8)]),
        Layer(1, [Topic(n, VECTORS[n], VECTORS[n : n + 3], 18) for n in range(4)]),
    ]
    people = [Participant(n, math.cos(n) + n % 2 * 4, math.sin(n), (0, 1, None)[n % 3], n) for n in range(60)]
    groups = [
        Group(n, 20, [Representative(n, True, 0.9, 0.5, 9), Representative(n + 2, False, 0.7, 0.4, 9)]) for n in (0, 1)
    ]
    words = dict.fromkeys(("model", "projection"), VECTORS[0])
    return Analysis(
        *(VECTORS[1], VECTORS[2], people, comments, groups, layers, [(0, 1), (1, 2)]),
        votes=900,
        variance=(0.4, 0.2),
        method=words,
        jobs=words,
    )


def pages(config: ReportConfig | None = None, analysis: Analysis | None = None) -> dict[str, bytes]:
    sections = dict.fromkeys(("summary", "groups", "consensus", "topics", "uncertainty"), "\n\n".join(VECTORS) + " [3]")
    text = Narrative(sections, written_by=VECTORS[3], language=VECTORS[4], note=VECTORS[5])
    return build(analysis or hostile(), config or ReportConfig(), NAMES, text)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, tmp_path: Path) -> AsyncIterator[Page]:
    for name, content in pages().items():
        (tmp_path / name).write_bytes(content)
    async with watched(browser, viewport=DESK) as (context, watch):
        found = await context.new_page()
        await found.goto((tmp_path / "report.html").as_uri())
        yield found
        watch.check()


@in_the_browser
async def test_the_plots_of_a_report_are_there_to_be_seen(page: Page) -> None:
    for label in ("Map of 60 participants", "comments by how far the groups are apart", "comments that unite"):
        plot = page.locator(f'svg[aria-label*="{label}"]')
        await expect(plot).to_be_visible()
        box = await plot.bounding_box()
        assert box is not None and box["width"] > 600 and box["height"] > 60
    assert await page.locator("#groups .person").count() == 60
    colours = await page.locator("#groups .person").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
    assert len(set(colours)) == 3, "a colour for each group, and one for those without"
    await expect(page.locator("#groups .group-name")).to_have_text(["Group A · 50%", "Group B · 50%"])


@in_the_browser
async def test_layers_are_switched_and_comments_found_without_a_script(page: Page) -> None:
    assert await page.locator("script").count() == 0
    await expect(page.locator(".panel.p0")).to_be_visible()
    await page.get_by_text("Fine: 8 topics").first.click()
    await expect(page.locator(".panel.p1 svg")).to_be_visible()
    await expect(page.locator(".panel.p0")).to_be_hidden()
    await page.locator("#summary a.cite").last.click()
    await expect(page.locator("#c3")).to_be_in_viewport()
    assert await page.locator("#c3:target").count() == 1


@in_the_browser
async def test_a_hostile_comment_is_shown_and_does_not_run(page: Page, tmp_path: Path) -> None:
    shown = await page.locator("#comments .words").all_text_contents()
    assert [text.split() for text in shown] == [text.split() for text in VECTORS], "as it was written, and as a text"
    for name in NAMES:
        await page.goto((tmp_path / f"{name}.html").as_uri())
        await expect(page.locator("svg.plot").first).to_be_visible()
        assert await page.locator("img, iframe, script, form, object, base, link").count() == 0


@in_the_browser
async def test_a_report_fits_a_phone_and_has_a_dark_side(page: Page) -> None:
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    await expect(page.locator(".topic-number").first).to_be_visible()
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != light


@in_the_browser
async def test_on_paper_a_report_shows_every_layer(page: Page) -> None:
    await page.emulate_media(media="print")
    for panel in (".panel.p0", ".panel.p1"):
        await expect(page.locator(panel)).to_be_visible()
    await expect(page.locator("nav")).to_be_hidden()


def test_each_visualization_that_is_asked_for_is_a_page_of_its_own() -> None:
    assert list(pages()) == ["report.html", *(f"{name}.html" for name in NAMES)]
    text = Narrative({}, written_by="")
    assert list(build(hostile(), ReportConfig(), ["enhanced"], text)) == ["report.html", "enhanced.html"]


def test_sections_that_are_not_wanted_are_left_out() -> None:
    lean = ReportConfig(include_topics=False, include_consensus=False, include_uncertainty=False)
    report = pages(lean)["report.html"].decode()
    assert not [name for name in ("consensus", "topics", "uncertainty") if f'<section id="{name}">' in report]
    assert '<section id="groups">' in report


def test_a_report_says_how_certain_its_groups_are_and_how_they_match_those_of_polis() -> None:
    match = PolisMatch(
        groups=3, people=50, rand_index=0.21, reasons=["Polis has 3 groups instead of 2", "and <b>more</b>"]
    )
    clear = replace(hostile(), certainty=Certainty("clear", 0.61, 0.93, 0.35))
    report = pages(analysis=clear)["report.html"].decode()
    assert "Clear groups." in report and "silhouette is 0.61" in report and "shuffled votes reach 0.35" in report
    assert "Polis" not in report.split("<section")[2]
    vague = replace(hostile(), certainty=Certainty("none", 0.31, 0.5, 0.35), match=match)
    report = pages(analysis=vague)["report.html"].decode()
    assert "No clear groups" in report and "groups, not clear" in report
    assert "the agreement on 50 people is 0.21" in report and "Polis has 3 groups instead of 2." in report
    assert "And &lt;b&gt;more&lt;/b&gt;." in report


def test_the_number_of_votes_is_next_to_each_percentage() -> None:
    comments = [Comment(n, f"Comment {n}", Votes(9, 3), {0: Votes(8, 1), 1: Votes(1, 2)}) for n in range(3)]
    groups = [Group(0, 9, [Representative(1, True, 8 / 9, 0.5, 9)]), Group(1, 3)]
    report = pages(analysis=replace(hostile(), comments=comments, groups=groups))["report.html"].decode()
    for share in ("75% of 12", "89% of 9", "33% of 3"):
        assert f">{share}<" in report
    assert (
        sentences(replace(hostile(), comments=comments, groups=groups), ["summary"])["summary"].count("of 12 votes")
        == 1
    )


def test_a_report_of_comments_alone_has_topics_and_no_groups() -> None:
    alone = replace(hostile(), participants=[], groups=[], has_votes=False, language="de")
    alone = replace(alone, comments=[replace(each, by_group={}) for each in alone.comments])
    report = pages(analysis=alone)["report.html"].decode()
    assert '<section id="groups">' not in report and '<section id="uncertainty">' not in report
    assert '<section id="topics">' in report and "People agree most with these" in report
    assert "<dt>people</dt>" not in report and 'lang="de"' in report


def test_a_report_of_hardly_anything_is_a_report() -> None:
    """One person, one comment, no groups to speak of, no topics."""
    one = Analysis("1", "Small", [Participant(0, 0, 0, None)], [Comment(0, "Well", Votes())], [], [])
    report = pages(analysis=one)["report.html"].decode()
    assert "Well" in report and "too few comments" in pages(analysis=one)["basic.html"].decode()


def test_a_report_of_a_huge_conversation_shows_the_comments_with_the_most_votes() -> None:
    few = hostile()
    many = [
        replace(few.comments[0], comment_id=n, text=f"Comment number {n}.", votes=Votes(n), divisiveness=n / 6000)
        for n in range(6000)
    ]
    report = pages(analysis=replace(few, comments=many))["report.html"].decode()
    assert "<dd>6,000</dd>" in report and "The 2,000 with the most votes of 6,000." in report
    assert 'id="c5999"' in report and "Comment number 3999." not in report


def test_a_report_asks_for_nothing_outside_of_itself() -> None:
    for name, content in pages().items():
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        assert policy in content.decode(), name
        assert b"url(" not in content.split(b"</style>")[0] and b"@import" not in content.split(b"</style>")[0]


def test_names_on_a_map_do_not_cover_one_another() -> None:
    frame = Frame(400, 300)
    wanted = [((200.0, 150.0), f"A name of some length {n}") for n in range(12)]
    placed = [label for label in place_labels(wanted, frame, 15) if label is not None]
    assert 4 <= len(placed) < 12, "as many as there is room for"
    for one in placed:
        for other in placed:
            assert one is other or abs(one.y - other.y) >= 18 or abs(one.x - other.x) >= 60


def test_points_without_extent_are_drawn_in_the_middle() -> None:
    assert Frame(100, 50).fit([(3, 3)] * 2) == [(50, 25), (50, 25)]
    assert Frame(100, 50).fit([]) == hull([]) == []
    assert columns([], 100, 10, 5) == []


def test_dots_over_a_line_do_not_touch() -> None:
    points = columns([0.5] * 40 + [n / 100 for n in range(100)], 860, 40, 5)
    for place, one in enumerate(points):
        assert all(math.dist(one, other) >= 10 for other in points[place + 1 :])
