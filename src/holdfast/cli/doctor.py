"""holdfast doctor: is all well, and what to do where it is not."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.cli import apps, output
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.text import count
from holdfast.errors import ConfigurationError, HoldfastError, StoreUnavailable
from holdfast.store.types import Finding

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(as_json: AsJson = False, url: Url = None, app: AppName = None) -> int:
    """Check the queue and its workers, and say what to do."""
    findings = _look(url, app)
    bad = sum(finding.level == "bad" for finding in findings)
    warnings = sum(finding.level == "warn" for finding in findings)
    if as_json:
        output.emit_json({"items": findings, "bad": bad, "warnings": warnings})
    else:
        for finding in findings:
            _print(finding, max(len(each.check) for each in findings))
        output.say(_verdict(len(findings), bad, warnings))
    return Exit.FAILED if bad else Exit.OK


def _look(url: str | None, app: str | None) -> list[Finding]:
    async def work(app: Holdfast) -> list[Finding]:
        return await app.check_up()

    try:
        return apps.run(url, app, work)
    except ConfigurationError:
        raise
    except HoldfastError as error:  # a queue that cannot be opened is what a doctor is called for
        away = isinstance(error, StoreUnavailable)
        return [Finding("opening", "bad", str(error), "start the server, or name another with --url" if away else "")]


def _verdict(checks: int, bad: int, warnings: int) -> str:
    if not bad and not warnings:
        return f"all is well ({count(checks, 'check')})"
    parts = [f"{bad:,} bad"] if bad else []
    parts += [count(warnings, "warning")] if warnings else []
    return f"{' and '.join(parts)} of {count(checks, 'check')}"


def _print(finding: Finding, longest: int) -> None:
    """On a terminal what to do stands under what is; elsewhere a check is one line."""
    lead = f"{finding.level:<4}  {finding.check:<{longest}}  "
    mark = f"{output.arrow()} "
    if output.width() is None:
        output.emit_paragraph(finding.says + (f" {mark}{finding.advice}" if finding.advice else ""), first=lead)
        return
    output.emit_paragraph(finding.says, first=lead, style=_STYLES[finding.level])
    if finding.advice:
        output.emit_paragraph(finding.advice, first=" " * len(lead) + mark)
