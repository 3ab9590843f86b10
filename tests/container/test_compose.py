"""The images and the compose file on a real Docker engine, with the stand-in for the GPU's engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from compose_project import OWNER, ROOT, Project

pytestmark = pytest.mark.container
LABEL = "eager-cost.run"


def until(condition: Callable[[], object], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def record(project: Project, name: str) -> dict[str, Any]:
    return json.loads((project.folder / "results/here/runs" / name / "run.json").read_text())


def test_one_command_runs_the_suite_reports_and_is_done_when_started_again(project: Project) -> None:
    output = project.run("campaign")
    assert "2 runs valid, 0 attempts failed, 0 runs left" in output
    assert project.runs() == ["7b.eager.sustained.r1.p1a1", "7b.graphs.sustained.r1.p1a1"]
    assert (project.folder / "out/report/report.SIMULATED.html").is_file()
    assert project.left() == ""
    image = project.docker("image", "inspect", "-f", "{{.Id}}", "eager-cost/campaign:0.1.0")
    run = record(project, project.runs()[0])
    assert run["container"]["image_id"] == image
    assert run["container"]["exit_code"] == 0
    assert run["container"]["oom_killed"] is False
    left = [p for p in (project.folder / "results").rglob("*") if p.stat().st_uid != OWNER or p.name == "engine_side"]
    assert left == []
    (sitting,) = (project.folder / "results/here/sittings").glob("*/provenance.json")
    provenance = json.loads(sitting.read_text())
    assert provenance["engine"]["launcher"] == "container"
    assert provenance["engine"]["container"]["base"] == project.environment["ENGINE_IMAGE"]
    again = project.run("campaign")
    assert "every block of the plan is complete" in again
    assert project.runs() == ["7b.eager.sustained.r1.p1a1", "7b.graphs.sustained.r1.p1a1"]


def test_killed_in_a_run_it_ends_the_orphan_and_goes_on(project: Project) -> None:
    first = project.start("campaign", speed=5)
    runs = project.folder / "results/here/runs"
    until(lambda: list(runs.glob("*.partial/steps.csv")))
    (server,) = project.containers(LABEL)
    project.docker("kill", "-s", "KILL", project.campaign())
    first.communicate(timeout=30)
    assert project.containers(LABEL) == [server], "nobody was there to end it"
    output = project.run("campaign")
    assert "left over by an earlier crash" in output
    assert "half-written folder moved to" in output
    assert "2 runs valid, 0 attempts failed, 0 runs left" in output
    assert project.left() == ""


def test_stopped_it_takes_the_server_along_and_stays_resumable(project: Project) -> None:
    first = project.start("campaign", speed=5)
    until(lambda: project.containers(LABEL) and list(project.folder.glob("results/here/runs/*.partial")))
    project.docker("stop", project.campaign())
    output, _ = first.communicate(timeout=30)
    assert first.returncode == 143, output
    assert "start again to go on" in output
    assert project.left() == ""


def test_two_workers_start_their_servers_beside_each_other_and_stop_together(project: Project) -> None:
    file = project.folder / "campaign.toml"
    file.write_text(file.read_text().replace("repetitions = 1", "repetitions = 2"))
    first = project.start("campaign", "run", "--workers", "2", speed=5)
    until(lambda: len(list(project.folder.glob("results/here/runs/*.partial/steps.csv"))) == 2, 60.0)
    assert len(project.containers(LABEL)) == 2
    project.docker("stop", project.campaign())
    output, _ = first.communicate(timeout=30)
    assert first.returncode == 143, output
    assert project.left() == ""
    output = project.run("campaign", "run", "--workers", "2")
    assert "4 runs valid, 0 attempts failed, 0 runs left: every block of the plan is complete" in output
    assert "worker 2 | " in output


def test_an_engine_that_dies_leaves_its_words_and_exit_status(project: Project) -> None:
    output = project.run("campaign", status=3, options=("-e", "CAMPAIGN_STANDIN_FAULT=crash_at_load"))
    assert "out_of_memory" in output
    (prime,) = (project.folder / "results/here/primes").glob("*.p1a1")
    assert json.loads((prime / "run.json").read_text())["container"]["exit_code"] == 1
    assert (prime / "server.log.gz").stat().st_size > 200
    assert project.left() == ""


def test_without_the_socket_engines_start_inside(project: Project) -> None:
    output = project.run("campaign-process")
    assert "2 runs valid" in output
    assert record(project, project.runs()[0])["container"] is None
    mounts = project.run("campaign-process", "sh", "-c", "ls /var/run/docker.sock || id")
    assert f"uid={OWNER} gid={OWNER}" in mounts


def test_what_is_missing_is_said(project: Project) -> None:
    output = project.run("campaign-process", "run", "--launcher", "container", status=2)
    assert "no container engine answers" in output
    assert "--launcher process" in output
    output = project.run("campaign", "run", "--image", "sha256:" + 64 * "0", status=2)
    assert "No such image" in output


def test_report_validate_and_demo_need_no_network(project: Project) -> None:
    project.run("campaign-process")
    (project.folder / "out/report/report.SIMULATED.html").unlink()
    environment = project.environment | {"RESULTS": "here"}
    offline = Project(project.folder, environment)
    assert "report.SIMULATED.html" in offline.run("report")
    assert (project.folder / "out/report/report.SIMULATED.html").stat().st_uid == OWNER
    assert "valid" in offline.run("validate")
    inside = offline.run(
        "report", "sh", "-c", "id; ls /sys/class/net; touch results/x || grep CapEff /proc/self/status"
    )
    assert f"uid={OWNER} gid={OWNER}" in inside
    assert "eth0" not in inside
    assert "Read-only file system" in inside
    assert "CapEff:\t0000000000000000" in inside
    demo = ["run", "--config=examples/demo.toml", "--blocks=7b.sporadic.r1", "--results=out/demo/results"]
    assert "2 runs valid" in offline.run("demo", *demo)


def test_as_another_user_the_command_runs_as_that_user(project: Project) -> None:
    for image in ("campaign", "report"):
        said = project.docker("run", "--rm", "--user", "4321:4321", f"eager-cost/{image}:0.1.0", "id", "-u")
        assert said == "4321"
        assert "campaign, version" in project.docker("run", "--rm", f"eager-cost/{image}:0.1.0", "--version")


def test_compose_file_is_valid_and_gives_the_socket_to_one_service(project: Project) -> None:
    text = project.docker("compose", "-f", str(ROOT / "compose.yaml"), "config", "--format", "json")
    services = json.loads(text)["services"]
    assert services.keys() >= {"campaign", "campaign-process", "report", "demo", "validate"}
    for name, service in services.items():
        assert not service.get("privileged")
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        has_socket = any(volume["target"].endswith("docker.sock") for volume in service["volumes"])
        assert has_socket == (name == "campaign"), name
        assert ("gpus" in service) == name.startswith("campaign"), name
