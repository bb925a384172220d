"""What the model of `scripts/bench scale-out` says is the limit, and how fast jobs are drained there."""

import pytest

from bench.harness.capacity import BATCH, CLAIM_SHARE, FLUSHES, Costs, Place, best, predict

COSTS = Costs(server_micros=25.0, crowd_micros=0.0, client_micros=20.0, log_bytes=900.0)
CROWDED = Costs(server_micros=25.0, crowd_micros=1.0, client_micros=20.0, log_bytes=900.0)


def test_few_workers_are_the_limit_and_each_adds_as_much() -> None:
    one, four = (predict(COSTS, Place(server_cores=8, processes=count, flush_ms=0.1)) for count in (1, 4))

    assert (one.limit, four.limit) == ("workers", "workers")
    assert one.rate == pytest.approx(1e6 / 20)
    assert four.rate == pytest.approx(4 * one.rate)


def test_a_process_with_a_part_of_a_core_drains_that_part() -> None:
    tenth = predict(COSTS, Place(server_cores=4, processes=1, process_cores=0.1))

    assert tenth.rate == pytest.approx(0.1 * 1e6 / 20)


def test_many_workers_fill_the_cores_of_the_server() -> None:
    assert predict(COSTS, Place(server_cores=4, processes=8)).limit == "server"
    assert predict(COSTS, Place(server_cores=4, processes=8)).rate == pytest.approx(4 * 1e6 / 25)


def test_each_further_process_makes_the_claims_of_the_others_dearer() -> None:
    rates = [predict(CROWDED, Place(server_cores=4, processes=count)).rate for count in (8, 16, 32)]

    assert rates == pytest.approx([4e6 / 32, 4e6 / 40, 4e6 / 56])


def test_a_slow_disk_bounds_what_each_process_claims() -> None:
    place = Place(server_cores=64, processes=2, flush_ms=20)
    claim_seconds = FLUSHES * 0.020 + BATCH * CLAIM_SHARE * 25e-6

    assert predict(COSTS, place).limit == "commits"
    assert predict(COSTS, place).rate == pytest.approx(2 * BATCH / claim_seconds)


def test_a_disk_that_writes_slowly_bounds_all_of_them() -> None:
    found = predict(COSTS, Place(server_cores=64, processes=64, log_bytes_per_second=90e6))

    assert found.limit == "log"
    assert found.rate == pytest.approx(100_000)


def test_the_best_number_of_processes_is_the_least_that_keeps_the_server_busy() -> None:
    places = [Place(server_cores=4, processes=count, flush_ms=0.1) for count in range(1, 20)]

    assert best(COSTS, places).processes == 4
    assert best(CROWDED, places).processes == 3
