"""Every page of the dashboard, by a name for its pictures."""

from __future__ import annotations

from urllib.parse import quote

from tests.dashboard.staged import CONVERSATION, Staged

NAMES = (
    "overview",
    "jobs",
    "jobs-failed",
    "jobs-none",
    "jobs-unreadable",
    "job-running",
    "job-done",
    "job-dead",
    "job-retrying",
    "job-waiting",
    "job-with-tables",
    "job-with-children",
    "rows",
    "trees",
    "tree",
    "queues",
    "workers",
    "dead",
    "dead-group",
    "schedules",
    "subjects",
    "subject",
    "subject-compare",
    "submit",
    "submit-order",
    "submit-json",
    "audit",
    "keys",
    "not-found",
)


def path(name: str, staged: Staged) -> str:
    match name:
        case "overview":
            return ""
        case "jobs-failed":
            return "/jobs?q=" + quote('status:failed type:charge subject:"customer 7"')
        case "jobs-none":
            return "/jobs?q=type:nothing"
        case "jobs-unreadable":
            return "/jobs?q=colour:red"
        case "job-running" | "job-retrying" | "job-waiting":
            return "/jobs/" + staged[name.removeprefix("job-")]
        case "job-done":
            return "/jobs/" + staged["report first"]
        case "job-dead":
            return "/jobs/" + staged["dead 0"]
        case "job-with-tables":
            return "/jobs/" + staged["tables"]
        case "job-with-children":
            return "/jobs/" + staged["tree"]
        case "rows":
            return f"/jobs/{staged['tables']}/results/points"
        case "tree":
            return "/trees/" + staged["growing tree"]
        case "dead-group":
            return "/dead/group?type=charge&error=TimeoutError"
        case "subject":
            return f"/subjects?subject={quote(CONVERSATION)}"
        case "subject-compare":
            sides = f"&left={staged['report first']}&right={staged['report second']}"
            return f"/subjects/compare?subject={quote(CONVERSATION)}{sides}"
        case "submit-order":
            return "/submit?type=order"
        case "submit-json":
            return "/submit?type=embedding&mode=json"
        case "not-found":
            return "/nowhere"
        case _:
            return f"/{name}"
