"""The files in deploy/ can be used as they are: Helm takes the chart, and every command in them is one that starts."""

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from backstay.cli.main import commands
from backstay.core.stats import TotalFigures
from backstay.server.metrics import Snapshot, exposition
from backstay.server.worker_summary import WorkerSummary
from tests.docs.pages import ROOT, blocks

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/backstay"
HELM = Path(sys.executable).with_name("helm")


def helm(*arguments: str) -> str:
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The chart with the values of the how-to page."""
    page = blocks(ROOT / "docs/howto/kubernetes.md")
    values = tmp_path_factory.mktemp("helm") / "values.yaml"
    values.write_text(next(each.code for each in page if each.file == "values.yaml"))
    helm("lint", "--strict", str(CHART), "--values", str(values))
    return [each for each in yaml.safe_load_all(helm("template", "jobs", str(CHART), "--values", str(values))) if each]


def starts(arguments: list[str]) -> None:
    """Parse the arguments as `backstay` does, without running the command."""
    root = typer.main.get_command(commands(arguments[0]))
    context = typer.Context(root)
    name, command, rest = root.resolve_command(context, arguments)  # type: ignore[attr-defined]
    assert command is not None, name
    command.make_context(name, rest, parent=context)


def test_helm_accepts_the_chart_with_its_own_values() -> None:
    helm("lint", "--strict", str(CHART))
    kinds = [each["kind"] for each in yaml.safe_load_all(helm("template", "jobs", str(CHART))) if each]
    assert sorted(kinds) == ["Deployment", "Deployment", "Service"]


def test_the_chart_makes_a_server_and_each_pool_of_workers(manifests: list[dict[str, Any]]) -> None:
    named = {(each["kind"], each["metadata"]["name"]): each for each in manifests}
    assert set(named) == {
        ("Deployment", "jobs-server"),
        ("Service", "jobs"),
        ("Deployment", "jobs-worker-mail"),
        ("Deployment", "jobs-worker-reports"),
        ("ScaledObject", "jobs-worker-reports"),
    }
    assert "replicas" not in named["Deployment", "jobs-worker-reports"]["spec"]  # or Helm and KEDA would argue
    assert named["Deployment", "jobs-worker-mail"]["spec"]["replicas"] == 2


def test_every_container_runs_a_command_that_exists_without_rights(manifests: list[dict[str, Any]]) -> None:
    pods = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment"]
    containers = [each for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]
    assert len(containers) == 4
    for container in containers:
        starts(container["args"])
        assert container["securityContext"]["runAsNonRoot"] is True
        assert [each["name"] for each in container["env"]] == ["BACKSTAY_URL", "BACKSTAY_APP"]


def test_a_pod_gets_longer_to_stop_than_its_worker(manifests: list[dict[str, Any]]) -> None:
    for each in manifests:
        if each["metadata"]["name"].startswith("jobs-worker") and each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            arguments = pod["containers"][0]["args"]
            grace = int(arguments[arguments.index("--grace") + 1].removesuffix("s"))
            assert pod["terminationGracePeriodSeconds"] >= grace + 25


def test_the_compose_file_starts_commands_that_exist_and_waits_for_what_they_need() -> None:
    services = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]
    assert set(services) == {"postgres", "migrate", "server", "worker"}
    for name in ("migrate", "server", "worker"):
        starts(services[name]["command"])
        assert "POSTGRES_PASSWORD" in services[name]["environment"]["BACKSTAY_URL"]
    for name in ("server", "worker"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["server"]["ports"] == ["127.0.0.1:8000:8000"]


def test_the_image_runs_a_command_as_a_list_and_not_as_root() -> None:
    lines = (DEPLOY / "docker/Dockerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line and not line.startswith(("#", " ")))
    starts(json.loads(said["CMD"]))
    assert json.loads(said["ENTRYPOINT"]) == ["backstay"]
    assert int(said["USER"]) > 0


@pytest.mark.parametrize("name", ["worker", "server"])
def test_a_unit_starts_a_command_that_exists_and_gives_it_time_to_stop(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / f"systemd/backstay-{name}.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/backstay")
    starts(arguments)
    assert (
        int(unit["Service"]["TimeoutStopSec"]) >= int(arguments[arguments.index("--grace") + 1].removesuffix("s")) + 25
    )
    assert unit["Service"]["RestartPreventExitStatus"] == "2"


def metrics() -> dict[str, set[str]]:
    """The metrics that a server exposes, with their labels, as one sample of each tells."""
    one = TotalFigures(
        job_type="a",
        queue="b",
        outcome="failed",
        count=1,
        time_seconds=1.0,
        wait_seconds=1.0,
        time_buckets=(1,) * 16,
        wait_buckets=(1,) * 16,
    )
    told = exposition(Snapshot([one], [], WorkerSummary(), 0)).decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(backstay_\w+)(?:\{(.*?)\})? ", told, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    for name in re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE):
        found.setdefault(name, set())
    return found


def queries() -> list[str]:
    grafana = json.loads((DEPLOY / "grafana/backstay.json").read_text())
    found = [target["expr"] for panel in grafana["panels"] for target in panel["targets"]]
    found += [each["definition"] for each in grafana["templating"]["list"] if each["type"] == "query"]
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    found += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    scaled = yaml.safe_load((DEPLOY / "kubernetes/scaled-object.yaml").read_text())
    return [*found, *(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])]


def test_every_query_asks_for_metrics_that_the_server_has() -> None:
    known = metrics()
    asked = queries()
    assert len(asked) > 25
    for query in asked:
        names = re.findall(r"backstay_\w+", query)
        assert names, query
        assert [name for name in names if name not in known] == [], query


def test_the_alerts_are_those_of_the_page() -> None:
    page = next(each.code for each in blocks(ROOT / "docs/howto/observe.md") if each.file == "backstay.rules.yml")
    assert yaml.safe_load(page) == yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
