"""Take one measurement and print its figures as a line of JSON.

    python -m bench.harness.measure sqlite limit drain --jobs 20000 --folder /some/empty/folder

A run starts this as a fresh process for every sample, so that no contender inherits another's memory,
threads or open files.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from bench.harness.contenders import CONTENDERS, Order, measure_of
from bench.workloads import WORKLOADS


def main() -> None:
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    order = Order(
        jobs=options.jobs,
        folder=options.folder.resolve(),
        shared=(options.shared or options.folder).resolve(),
        idle_seconds=options.idle_seconds,
        finished=options.finished,
        pending=options.pending,
        retirable=options.retirable,
        url=options.url,
    )
    os.sync()  # the previous sample must not write to the disk during this one
    print(json.dumps(measure_of(options.store, options.contender, options.workload)(order)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take one measurement.")
    parser.add_argument("store", choices=sorted(WORKLOADS))
    parser.add_argument("contender", choices=sorted({name for each in CONTENDERS.values() for name in each}))
    parser.add_argument("workload", choices=sorted({each.name for all_of in WORKLOADS.values() for each in all_of}))
    parser.add_argument("--url", help="an empty database, for a store that is a server")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shared", type=Path, help="where prepared files are kept (default: the folder)")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--retirable", type=int, default=300_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
