"""Changes come from pages of ours, whatever another site makes a browser send."""

from pathlib import Path

from tests.server.gated import HERE, served

FORM = {"Content-Type": "application/x-www-form-urlencoded"}

FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
    {"Sec-Fetch-Site": "nonsense"},
    {"Origin": "http://evil.test"},
    {"Origin": "null"},
    {"Origin": "http://localhost:81"},
    {"Origin": "http://localhost.evil.test"},
]


async def test_a_form_from_another_site_changes_nothing_on_the_dashboard(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for headers in (*FOREIGN, {}, {"Origin": ""}):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                answer = await server.client.request(
                    method, "/dashboard/queues/default/pause", headers={**FORM, **headers}
                )
                assert answer.status_code == 403, (method, headers)
                assert "text/html" in answer.headers["Content-Type"]
        assert [queue.paused for queue in await server.app.queues()] in ([], [False], [False, False])


async def test_a_form_of_the_dashboard_reaches_its_page(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": HERE}):
            answer = await server.client.post("/dashboard/theme", headers={**FORM, **headers}, content=b"theme=dark")
            assert "The request came from another site" not in answer.text, headers
            assert answer.status_code == 403  # its token is missing, which the form itself is asked for


async def test_pages_that_a_browser_of_this_machine_shows_cannot_use_an_api_without_keys(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for headers in FOREIGN:
            for method, path in (("POST", "/queues/default/pause"), ("DELETE", "/jobs/x"), ("POST", "/jobs/anything")):
                answer = await server.client.request(method, path, headers=headers)
                assert answer.status_code == 403, (method, path, headers)
        for headers in ({}, {"Sec-Fetch-Site": "same-origin", "Origin": HERE}):
            answer = await server.client.post("/jobs/anything", json={}, headers=headers)
            assert answer.status_code == 201


async def test_with_a_key_in_a_header_it_does_not_matter_which_page_asks(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        key = await server.key("submit")
        answer = await server.client.post("/jobs/anything", json={}, headers={**key, "Origin": "http://tools.example"})
        assert answer.status_code == 201


async def test_reading_is_not_asked_where_it_comes_from(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for method in ("GET", "HEAD", "OPTIONS"):
            answer = await server.client.request(method, "/dashboard/queues", headers={"Sec-Fetch-Site": "cross-site"})
            assert answer.status_code != 403
