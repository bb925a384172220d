import asyncio

from backstay import Backstay, Context

app = Backstay("sqlite:///jobs.db")


@app.job("greet", max_attempts=3, timeout=60)
async def greet(name: str, *, ctx: Context) -> str:
    for done, stage in enumerate(["paper", "pen", "ink"]):
        await ctx.progress(done / 3, stage=stage)
        await asyncio.sleep(0.5)  # slow work
    return f"Hello, {name}! (attempt {ctx.attempt})"


async def main() -> None:
    async with app, app.worker():  # or in a separate process: backstay worker
        job = await greet.options(dedup_key="Ada").submit(name="Ada")
        print("stored", job.job_id, flush=True)  # stored: from here on the job is never lost
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
