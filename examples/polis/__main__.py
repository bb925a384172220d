"""Analyses a conversation: `python -m polis [EXPORT]`, or examples/polis/run, which sets everything up.

Interrupt it in any way and start it again: it resumes where it was. Start it again when it is done: nothing is computed
again.
"""

import argparse
import asyncio
import errno
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from backstay import Backstay, BackstayError, Job

from .configs import UmapConfig
from .conversations import part_of_path
from .database import is_database, write_export
from .export import SUMMARY, ExportError, add_strict, files_of, read_export
from .progress import watch
from .report_stage import PIPELINE
from .sample import CONVERSATION_ID, PARTICIPANTS, write_sample

RENAMES_MAX = 100
GRACE_SECONDS = 2.0  # how long an interrupted run lets its handlers finish
EMBEDDING_MODELS = get_args(UmapConfig.model_fields["embedding_model"].annotation)


def main() -> int:
    options = arguments()
    console = Console(highlight=False, soft_wrap=True)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        export = source(options)
        os.environ["POLIS_EXPORTS"] = str(export.parent)  # read by the handlers, here and in child processes
        os.environ.setdefault("BACKSTAY_URL", f"sqlite:///{options.folder / 'jobs.db'}")
        return asyncio.run(run(export, options, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nInterrupted. Start it again: it goes on where it was.")
        return 130
    except (ExportError, BackstayError, OSError) as error:
        console.print(f"polis: {error}", markup=False)
        return 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="polis", description="Analyse a Polis conversation and write a report of it.")
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="folder of an export, named as the conversation, or postgresql://…, the database of a Polis server",
    )
    parser.add_argument("--conversation", help="of the database: as in its address (pol.is/3nemnipcrc), or its zid")
    parser.add_argument("--strict-moderation", action="store_true", help="only accepted comments count")
    parser.add_argument("--folder", type=Path, default=Path("backstay-demo"), help="for the queue and the report")
    parser.add_argument("--embedding-model", choices=EMBEDDING_MODELS, default="wordllama")
    parser.add_argument("--language", default="en", help="of the narrative, where a model writes it")
    parser.add_argument("--participants", type=int, default=PARTICIPANTS, help="of the sample conversation")
    parser.add_argument("--submit", action="store_true", help="leave the work to a worker elsewhere")
    options = parser.parse_args()
    if is_database(options.source or "") != bool(options.conversation):
        parser.error("--conversation goes with the address of a database, and that with it")
    if options.participants < 10:
        parser.error("--participants starts at 10: fewer are no conversation")
    options.folder = options.folder.absolute()
    return options


def source(options: argparse.Namespace) -> Path:
    """Return the folder of the export: the given one, the sample, or what the database of a Polis server holds."""
    if options.source is None:
        return sample(options.folder, options.participants)
    if is_database(options.source):
        return from_database(options.folder, options.source, options.conversation, strict=options.strict_moderation)
    export = Path(options.source).absolute()
    return strictly_moderated(options.folder, export) if options.strict_moderation else export


def from_database(folder: Path, url: str, conversation: str, *, strict: bool) -> Path:
    target = folder / "exports" / part_of_path(conversation)
    draft = draft_of(target)
    try:
        draft.mkdir(parents=True)
        asyncio.run(write_export(url, conversation, draft))
        if strict:
            add_strict(draft)
        put_in_place(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def strictly_moderated(folder: Path, export: Path) -> Path:
    """Copy an export and note in it that moderation was strict, under a name of its own: it is another analysis."""
    files = [path for path in files_of(export) if path is not None]
    target = folder / "exports" / f"{export.name}-strict"
    draft = draft_of(target)
    draft.mkdir(parents=True)
    for path in (*files, export / SUMMARY):
        if path.is_file():
            shutil.copyfile(path, draft / path.name)
    add_strict(draft)
    put_in_place(draft, target)
    return target


def sample(folder: Path, participants: int) -> Path:
    """Write the sample's export, as a whole or not at all, even if this process is killed."""
    name = CONVERSATION_ID if participants == PARTICIPANTS else f"{CONVERSATION_ID}-{participants}"
    target = folder / "exports" / name
    if not target.exists():
        draft = draft_of(target)
        write_sample(draft, participants=participants)
        try:
            draft.rename(target)
        except OSError:
            shutil.rmtree(draft)
            if not target.is_dir():  # otherwise another run was faster, and the sample is always the same
                raise
    return target


def draft_of(target: Path) -> Path:
    """Return a temporary path next to it. Not named by pid: in a container, the next process may have the same one."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


def put_in_place(draft: Path, target: Path) -> None:
    """Replace what exists; another run may do the same at the same moment."""
    for _ in range(RENAMES_MAX):
        try:
            draft.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            shutil.rmtree(target, ignore_errors=True)
        else:
            return
    raise FileExistsError(f"{target} comes back whenever it is removed: who else writes there?")


async def run(export: Path, options: argparse.Namespace, console: Console) -> int:
    from .app import app  # only now: it reads BACKSTAY_URL

    started = time.monotonic()
    payload = {
        "stages": [
            {"stage": "PCA"},
            {"stage": "UMAP", "config": {"embedding_model": options.embedding_model}},
            {"stage": "REPORT", "config": {"language": options.language}},
        ]
    }
    async with app:
        root, is_new = await submit(app, export, payload)
        if options.submit:
            console.print(f"{'Submitted' if is_new else 'There already'}: job {root.job_id} in {app.url}", markup=False)
            return 0
        console.print(f"Analysing {export}", markup=False)
        if root.status == "completed":
            ended = await app.tree(root.job_id)
        else:
            async with app.worker(grace=GRACE_SECONDS):
                ended = await watch(app, root.job_id, console)
        jobs = {each.job_stage or each.job_type: each for each in ended.jobs.values()}
        if ended.job.status != "completed":
            return failed(jobs, console)
        target = options.folder / "reports" / export.name
        pages = await keep(app, jobs["REPORT"], target)
    seconds = time.monotonic() - started
    summarise(jobs, pages, seconds, nothing_new=root.status == "completed", console=console)
    return 0


async def submit(app: Backstay, export: Path, payload: dict[str, Any]) -> tuple[Job, bool]:
    """Return the analysis of this export with these settings: the existing one, or a new one. One that has failed
    resumes at the stage that failed."""
    from .app import analyse, full_pipeline

    digest = read_export(export, export.name).digest
    same_work = hashlib.sha256(json.dumps([digest, payload], sort_keys=True).encode()).hexdigest()
    found = await app.find(job_type=full_pipeline.name, subject=export.name, content_hash=same_work, limit=1)
    if found:
        if found[0].status in ("failed", "cancelled"):
            return await app.retry(found[0].job_id, subtree=True, reason="started again"), False
        return found[0], False
    handle = await analyse(
        full_pipeline, export.name, payload, content_hash=same_work, dedup_key=f"polis:{same_work}", created_by="polis"
    )
    return await app.get(handle.job_id), True


async def keep(app: Backstay, report: Job, target: Path) -> dict[str, Path]:
    """Write the pages as files for a browser, in addition to the artifacts in the queue."""
    pages = {each.name: await app.artifact(report.job_id, each.name) for each in await app.artifacts(report.job_id)}
    return await asyncio.to_thread(write_pages, pages, target)


def write_pages(pages: dict[str, bytes], target: Path) -> dict[str, Path]:
    """Write all pages, or leave the previous ones."""
    draft = draft_of(target)
    draft.mkdir(parents=True)
    for name, page in pages.items():
        (draft / name).write_bytes(page)
    put_in_place(draft, target)
    return {name: target / name for name in sorted(pages)}


def failed(jobs: dict[str, Job], console: Console) -> int:
    """Return which stage failed, and why; without the jobs that were cancelled or failed because of it."""
    stages = {name: job for name, job in jobs.items() if name != PIPELINE and job.status == "failed"}
    for name, job in (stages or {PIPELINE: jobs[PIPELINE]}).items():
        console.print(f"{name} {job.status.value}: {job.last_error or 'it was stopped'}", markup=False)
    console.print("Start it again to go on from there.")
    return 1


def summarise(
    jobs: dict[str, Job], pages: dict[str, Path], seconds: float, nothing_new: bool, console: Console
) -> None:
    pca, umap = jobs["PCA"].result, jobs["UMAP"].result
    votes, groups = pca["summary_metrics"]["votes_processed"], pca["summary_metrics"]["groups_identified"]
    layers = umap["layers"]
    topics = f"{layers[-1]} to {layers[0]}" if len(layers) > 1 else f"{sum(layers)}"
    about = f"{votes:,} votes, {groups} opinion groups" if pca["groups"] else "No votes in this export"
    console.print(
        f"{about}, {umap['summary_metrics']['comments_embedded']} comments in"
        f" {topics} topics, embedded with {umap['embedding_model']}, in {seconds:.1f} s."
    )
    if again := [f"{name} ({job.attempt} attempts)" for name, job in jobs.items() if job.failures]:
        console.print(f"Cut off and run again: {', '.join(again)}.")
    console.print(f"Report: {pages['report.html']}", markup=False)
    for name, path in pages.items():
        if name != "report.html":
            console.print(f"        {path}", markup=False)
    if nothing_new:
        console.print("Nothing was computed: this export was analysed before, with the same settings.")


if __name__ == "__main__":
    sys.exit(main())
