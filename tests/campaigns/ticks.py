"""Workers that fire schedules, with clocks that differ and jump, while they are killed and stopped on a plan."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from backstay import Backstay
from backstay.clock import MICROS, Instant
from backstay.core.records import JobRecord, Verdict
from backstay.testing.history import Evidence
from backstay.testing.history.checker import check, unfinished
from tests.campaigns.clocks import Clocks, SlotClock
from tests.campaigns.fleet import Fleet, Process, dump
from tests.campaigns.kills import EXTERNAL
from tests.campaigns.processes.schedule import STALL, WORK, Fired, fired_in, make_app
from tests.campaigns.ticks_judge import Rule, install_witness, judge, read_stories

FIRE_POINTS = ("fire.before", "fire.uncommitted", "fire.committed", "fire.after")
STOPPED = "stopped across ticks"  # SIGSTOP between the decision and the firing
RULES = (
    Rule("all", "*/10 * * * *", "all", 10, "Europe/Berlin"),
    Rule("one", "* * * * *", "one", 1),
    Rule("skip", "@every 5m", "skip", 5),
)
WORKERS = 8
RATE = 120  # a minute of these clocks takes half a second
START = 1_900_000_000 * MICROS
MINUTE, HOUR, DAY = 60, 3600, 86_400
LEASE_SECONDS = 600  # of the workers' clocks
BEAT_SECONDS = 0.15
SKEWS = (0, 0, 3 * MINUTE, -3 * MINUTE, HOUR, -HOUR, DAY, -DAY, None)  # seconds; None: the clock stands still
STOP_TICKS = 3


@dataclass
class TickPlan:
    at_each_point: int
    from_outside: int
    stops: int
    seed: int
    ticks: int  # that pass at least, over all schedules
    upsets: int  # of clocks, at least
    calm_jobs: int = 2  # of each schedule, after the faults

    @property
    def kills(self) -> int:
        return self.at_each_point * len(FIRE_POINTS) + self.from_outside


@dataclass
class TickReport:
    kills: Counter[str] = field(default_factory=Counter)
    stops: int = 0
    refused_after_stop: int = 0
    upsets: Counter[str] = field(default_factory=Counter)
    ticks: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    firings: Counter[str] = field(default_factory=Counter)  # by what they were told
    fired_by: int = 0  # processes
    faults: list[str] = field(default_factory=list)


@dataclass
class Stop:
    """Of a process, between its decision and its firing."""

    cursors: dict[str, Instant]
    asked: int  # firings before it stopped: the next one is what it had decided then
    late: Fired | None = None

    def is_left_behind(self, cursors: dict[str, Instant]) -> bool:
        return all(cursors[rule.name] - self.cursors[rule.name] >= STOP_TICKS * rule.period for rule in RULES)


class Ticking:
    def __init__(
        self, fleet: Fleet, plan: TickPlan, progress: Callable[[TickReport], None] = lambda report: None
    ) -> None:
        self.fleet = fleet
        self.plan = plan
        self.progress = progress
        self.draw = random.Random(plan.seed)
        self.report = TickReport()
        self.path = fleet.folder / "clocks"
        self.clocks = Clocks.create(self.path, WORKERS + 1, START, RATE)
        fates = [point for point in FIRE_POINTS for _ in range(plan.at_each_point)]
        fates += [EXTERNAL] * plan.from_outside + [STOPPED] * plan.stops
        self.draw.shuffle(fates)
        self.fates = deque(fates)
        self.fate_of: dict[Process, str] = {}
        self.slot_of: dict[Process, int] = {}
        self.due = len(fates)
        self.deaths: asyncio.Queue[Process] = asyncio.Queue()
        self.skews: list[int | None] = []  # skews of the next clocks: each is used before one is repeated
        self.stopped: dict[Process, Stop] = {}
        self.first: dict[str, Instant] = {}

    async def run(self, within: float) -> TickReport:
        self.fleet.on_death = self.deaths.put_nowait
        async with make_app(self.fleet.url, SlotClock(self.clocks, WORKERS)) as app:
            for rule in RULES:
                await app.schedule(
                    rule.name, rule.cron, "tick", {"of": rule.name}, missed=rule.missed, timezone=rule.timezone
                )
            install_witness(self.fleet.folder / "jobs.db")
            self.first = {each.name: each.next_at for each in await app.store.schedules()}
            try:
                async with asyncio.timeout(within):
                    await self._upset_and_kill(app)
                    await self._calm_down(app)
            except TimeoutError:
                waiting = [fate for process, fate in self.fate_of.items() if process.alive]
                raise AssertionError(
                    f"not done within {within} s: {self.due} fates are due, waiting: {waiting}; cursors"
                    f" {await self._cursors(app)}, clocks {self.clocks.common()}\n{self.fleet.errors()}"
                ) from None
            await self._end(app)
        return self.report

    # Faults

    async def _upset_and_kill(self, app: Backstay) -> None:
        for slot in range(WORKERS):
            await self._start(slot)
        while not await self._is_done(app):
            process = await self._next_death()
            if process is not None:
                self._count(process)
                await self._start(self.slot_of[process])
                continue
            self._upset()
            await self._catch_up(app)
            await self._let_go(app)
            self.progress(self.report)

    async def _start(self, slot: int) -> None:
        fate = self.fates.popleft() if self.fates else ""
        match fate:
            case "" | "from outside":
                program, failpoint = WORK, ""
            case "stopped across ticks":
                program, failpoint = STALL, f"fire.before=stop@{self.draw.randint(1, 3)}"
            case point:
                program, failpoint = WORK, f"{point}=kill9@{self.draw.randint(1, 3)}"
        options = {"clocks": str(self.path), "start": START, "rate": RATE, "slot": slot}
        process = await self.fleet.start(program, "worker", failpoint, **options)
        self.fate_of[process], self.slot_of[process] = fate, slot
        if fate == EXTERNAL:
            asyncio.get_running_loop().call_later(self.draw.uniform(0.05, 1.5), process.send, signal.SIGKILL)

    async def _next_death(self) -> Process | None:
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                return await self.deaths.get()
        except TimeoutError:
            return None

    def _count(self, process: Process) -> None:
        fate = self.fate_of[process]
        if fate == EXTERNAL and process.killed_by_us:
            self.report.kills[EXTERNAL] += 1
        elif fate == STOPPED and process.death == "exited 0":
            self.report.stops += 1
        elif fate in FIRE_POINTS and process.died_at_its_failpoint:
            self.report.kills[fate] += 1
        else:
            self.report.faults.append(f"{process.name} ({fate or 'no fate'}): {process.death}")
        self.due -= bool(fate)

    def _upset(self) -> None:
        """Set one clock, or stop it until it is set again."""
        slot = self.draw.randrange(WORKERS)
        if not self.skews:
            self.skews = self.draw.sample(SKEWS, len(SKEWS))
        skew = self.skews.pop()
        if skew is None:
            self.clocks.freeze(slot)
            self.report.upsets["stood still"] += 1
            return
        seconds = skew + self.draw.uniform(-20, 20)
        before = self.clocks.skew(slot) / MICROS
        self.clocks.set_skew(slot, seconds)
        if abs(seconds - before) >= MINUTE:
            self.report.upsets["forward" if seconds > before else "back"] += 1

    async def _catch_up(self, app: Backstay) -> None:
        """Correct a clock that was ahead and moved the cursors, and let the others catch up."""
        ahead = max((await self._cursors(app)).values()) - self.clocks.common()
        if ahead < 20 * MINUTE * MICROS:
            return
        for slot in range(WORKERS):
            if self.clocks.skew(slot) > MINUTE * MICROS:
                self.clocks.set_skew(slot, 0)
        self._move_all(ahead / MICROS - 30)

    def _move_all(self, seconds: float) -> None:
        self.clocks.move_all(seconds)
        self.report.upsets["all forward"] += 1

    async def _let_go(self, app: Backstay) -> None:
        """Resume stopped processes once every schedule has passed their decisions; they end when told to."""
        cursors = await self._cursors(app)
        for process in [each for each, fate in self.fate_of.items() if fate == STOPPED and each.alive]:
            stop = self.stopped.get(process)
            if stop is None and process.stopped.is_set():
                self.stopped[process] = Stop(cursors, len(self._fired_by(process)))
                self._move_all((STOP_TICKS + 1) * max(rule.minutes for rule in RULES) * MINUTE)
            elif stop is not None and process.stopped.is_set() and stop.is_left_behind(cursors):
                process.send(signal.SIGCONT)
            elif stop is not None and stop.late is None:
                late = self._fired_by(process)[stop.asked :]
                if late and late[0].verdict is not None:
                    stop.late = late[0]
                    process.send(signal.SIGTERM)

    def _fired_by(self, process: Process) -> list[Fired]:
        path = self.fleet.calls / f"{process.name}.fired"
        return fired_in(path) if path.exists() else []

    async def _cursors(self, app: Backstay) -> dict[str, Instant]:
        return {each.name: each.next_at for each in await app.store.schedules()}

    async def _is_done(self, app: Backstay) -> bool:
        cursors = await self._cursors(app)
        passed = sum((cursors[rule.name] - self.first[rule.name]) // rule.period for rule in RULES)
        return not self.due and passed >= self.plan.ticks and self.report.upsets.total() >= self.plan.upsets

    # The end

    async def _calm_down(self, app: Backstay) -> None:
        """End the faults: with correct clocks, every schedule creates jobs again, even one that skips late ticks."""
        for slot in range(WORKERS):
            self.clocks.set_skew(slot, 0)
        wanted = {rule.name: self.plan.calm_jobs for rule in RULES}
        last = {each.name: each.last_job_id for each in await app.store.schedules()}
        while any(count > 0 for count in wanted.values()):
            assert await self._next_death() is None, "a worker died though nobody meant it to"
            schedules = await app.store.schedules()
            for each in schedules:
                if each.last_job_id != last[each.name]:
                    last[each.name] = each.last_job_id
                    wanted[each.name] -= 1
            self._approach([each.next_at for each in schedules if wanted[each.name] > 0])

    def _approach(self, cursors: list[Instant]) -> None:
        """Skip the time in which nothing is due; the rest passes at its own pace."""
        ahead = min(cursors, default=0) - self.clocks.common()
        if ahead > MINUTE * MICROS:
            self.clocks.move_all(ahead / MICROS - 20)

    async def _end(self, app: Backstay) -> None:
        for rule in RULES:
            await app.pause_schedule(rule.name, by="harness")
        self.clocks.move_all(3 * DAY)  # jobs that a clock ahead of time has delayed are due now
        await self.fleet.all_ended(app.store, seconds=60)
        await self.fleet.terminate()
        self._judge(await dump(app.store))

    def _judge(self, records: list[JobRecord]) -> None:
        report = self.report
        fired = [each for path in sorted(self.fleet.calls.glob("*.fired")) for each in fired_in(path)]
        stories = read_stories(self.fleet.folder / "jobs.db", RULES, self.first, fired)
        for story in stories:
            report.faults += judge(story)
            report.ticks[story.rule.name] = len(story.rule.ticks(story.first, story.cursor))
            report.jobs[story.rule.name] = len(story.jobs)
        evidence = Evidence(records)
        report.faults += [str(each) for each in check(evidence, clocks="arbitrary") + unfinished(evidence)]
        report.firings = Counter("unknown" if each.verdict is None else each.verdict.value for each in fired)
        report.fired_by = len({each.process for each in fired if each.verdict is Verdict.APPLIED})
        for process, stop in self.stopped.items():
            if stop.late is not None and stop.late.verdict is Verdict.STALE:
                report.refused_after_stop += 1
            else:
                report.faults.append(f"{process.name} was stopped across ticks, and its firing came to {stop.late}")
        report.faults += [
            f"{each.name}: {each.death}" for each in self.fleet.all if each.death not in ("exited 0", "killed 9")
        ]
