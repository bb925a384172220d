"""The demonstration: uploads songs, follows progress, and shows that a kill -9 in the middle changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from analysis import songs, sound
from analysis.client import Client
from backstay.sync import Backstay

ENDED = ("completed", "failed")
LOOK = 0.05  # seconds between two reads of the progress


class Service:
    """The service in a process of its own, on a free port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it; return its address once it listens."""
        log = self._folder / "service.log"
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "analysis", "serve"],
                env={**os.environ, "CACHE_DIR": str(self._folder)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"the service did not start: {log} says why")
        return line.split()[-1]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.communicate()
            self._process = None


@dataclass(frozen=True, slots=True)
class Followed:
    title: str
    job_id: str
    bar: TaskID


def key_of(folder: Path) -> str:
    """Return a key of the service, created at the first run and stored next to the queue."""
    kept = folder / "key.txt"
    if not kept.exists():
        with Backstay(f"sqlite:///{folder / 'jobs.db'}") as queue:
            made = queue.create_key("demo", ["admin"], by="demo").text
        kept.touch(mode=0o600)
        kept.write_text(made)
    return kept.read_text()


def submit(client: Client, folder: Path, chosen: tuple[songs.Song, ...], progress: Progress) -> list[Followed]:
    followed = []
    for song in chosen:
        path = folder / f"{song.title}.wav"
        if not path.exists():
            sound.write(path, songs.sing(song))
        content_hash = client.send_audio(path)
        body = {"content_hash": content_hash}
        lyrics = {**body, "lyrics": song.lyrics, "title": song.title, "artist": "A synthesiser"}
        for kind, wanted in (("analyze", body), ("lrc", lyrics)):
            job = client.post(f"/jobs/{kind}", wanted)
            bar = progress.add_task(f"{kind:8}{song.title}", total=1.0, stage=job["stage"])
            followed.append(Followed(song.title, job["job_id"], bar))
    return followed


def follow(client: Client, followed: list[Followed], progress: Progress, *, half: bool) -> bool:
    """Wait until all have ended or, with `half`, until one is under way; return whether all have ended."""
    while True:
        jobs = [client.get(f"/jobs/{each.job_id}") for each in followed]
        for each, job in zip(followed, jobs, strict=True):
            progress.update(each.bar, completed=job["progress"], stage=job["stage"] or job["status"])
        ended = [job["status"] in ENDED for job in jobs]
        if all(ended):
            return True
        running = [job for job in jobs if job["status"] == "processing"]
        if half and running and (any(ended) or any(job["progress"] > 0 for job in running)):
            return False
        time.sleep(LOOK)


def main(folder: Path, count: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    service = Service(folder)
    chosen = songs.SAMPLES[:count]
    key = key_of(folder)
    columns = (TextColumn("{task.description:34}"), BarColumn(), TextColumn("{task.fields[stage]}"))
    try:
        client = Client(service.start(), key)
        console.print(
            f"The service: {client.address}, and its dashboard: {client.address}/backstay/dashboard", soft_wrap=True
        )
        with Progress(*columns, console=console) as progress:
            followed = submit(client, folder, chosen, progress)
            if not follow(client, followed, progress, half=True):
                service.kill()
                console.print("kill -9 in the middle of it; started again, the ids stay good:")
                client = Client(service.start(), key)
                follow(client, followed, progress, half=False)
        return report(client, followed, folder, chosen, console)
    finally:
        service.stop()


def report(
    client: Client, followed: list[Followed], folder: Path, chosen: tuple[songs.Song, ...], console: Console
) -> int:
    jobs = [client.get(f"/jobs/{each.job_id}") for each in followed]
    for each, job in zip(followed, jobs, strict=True):
        if job["status"] != "completed":
            console.print(f"{each.title}: {job['job_type']} failed: {job['error_message']}")
    analysed = {each.title: job for each, job in zip(followed, jobs, strict=True) if job["job_type"] == "analyze"}
    table = Table("song", "tempo", "key", "LUFS", "sections, from second", box=None)
    for song in chosen:
        if result := analysed[song.title]["result"]:
            table.add_row(song.title, *_found(song, result))
    console.print(table)
    reused = sum(job["reused_from"] is not None for job in jobs)
    console.print(f"{len(jobs)} jobs, {reused} of them took the result of an earlier one.")
    for each, job in zip(followed, jobs, strict=True):
        if job["job_type"] == "lrc" and job["result"]:
            done_by = job["reused_from"] or job["job_id"]
            for name in ("song.lrc", "song.svg"):
                text = client.read(f"/backstay/jobs/{done_by}/artifacts/{name}")
                (folder / f"{each.title}{Path(name).suffix}").write_bytes(text)
    console.print((folder / f"{followed[0].title}.lrc").read_text().rstrip(), markup=False)
    console.print(f"Lyrics (.lrc) and pictures (.svg) of all songs: {folder}", soft_wrap=True)
    return int(any(job["status"] != "completed" for job in jobs))


def _found(song: songs.Song, result: dict[str, Any]) -> tuple[str, ...]:
    """Return the measurements, each with a tick if it is correct, else with the true value."""
    form = " ".join(f"{each['label']} {each['start']:.0f}" for each in result["sections"])
    tempo, key = f"{result['tempo_bpm']:.1f}", result["key"]
    return _compared(tempo, f"{song.tempo:.1f}"), _compared(key, song.key), str(result["loudness_lufs"]), form


def _compared(measured: str, made: str) -> str:
    return f"{measured} ✓" if measured == made else f"{measured} ({made})"
