"""Tests of contrib/: its files name metrics, flags and files that exist."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyqd.broker.broker import Broker
from pyqd.config.options import FLAGS, parse_args
from pyqd.lookupd.options import LOOKUP_DAEMON
from pyqd.metrics.prometheus import Metrics
from tests.meta.repository import ROOT, project
from tests.support.manifests import document

CONTRIB = ROOT / "scripts" / "contrib"
METRIC = re.compile(r"\b(?:pyqd|process|python)_[a-z_]+\b")
GRID_COLUMNS = 24
UNITS = {"pyqd.service": FLAGS, "pyqlookupd.service": LOOKUP_DAEMON.flags}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONTRIB / "grafana-dashboard.json").read_text())
    return loaded


def sample_names(tmp_path: Path) -> set[str]:
    """Return the names of all samples that a daemon with one channel shows."""
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--e2e-processing-latency-percentile=0.99"]))
    broker.load()
    broker.topic("t").channel("c")
    text = b"".join(Metrics(broker).pieces()).decode()
    broker.close()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def flags_in(command: str) -> list[str]:
    return [word.lstrip("-").split("=")[0] for word in shlex.split(command) if word.startswith("--")]


def test_every_metric_of_the_dashboard_is_in_a_scrape(tmp_path: Path) -> None:
    shown = dashboard()
    queries = [target["expr"] for panel in shown["panels"] for target in panel.get("targets", [])]
    queries += [variable["definition"] for variable in shown["templating"]["list"] if "definition" in variable]
    named = {name for query in queries for name in METRIC.findall(query)}
    assert len(named) > 30
    assert named <= sample_names(tmp_path)


def test_every_metric_of_the_how_to_is_in_a_scrape(tmp_path: Path) -> None:
    named = set(METRIC.findall((ROOT / "docs" / "how-to" / "prometheus.md").read_text()))
    assert len(named) > 5
    assert named <= sample_names(tmp_path)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in own) < GRID_COLUMNS
        assert not own & cells, panel["title"]
        cells |= own


def test_rates_are_of_counters_and_of_nothing_else() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            for name in re.findall(r"rate\((\w+)", target["expr"]):
                assert name.endswith(("_total", "_bucket")), name
            for name in re.findall(r"\w+_total", target["expr"]):
                assert f"rate({name}" in target["expr"] or name == "pyqd_damage_total", name


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(CONTRIB / name)
    return parser


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_our_program_with_flags_that_it_has(name: str) -> None:
    program, *words = unit(name)["Service"]["ExecStart"].split()
    assert Path(program).name == Path(name).stem
    assert Path(program).name in project()["project"]["scripts"]
    assert set(flags_in(" ".join(words))) <= {flag.name for flag in UNITS[name]}


@pytest.mark.parametrize("name", UNITS)
def test_the_flags_in_the_head_of_a_unit_exist(name: str) -> None:
    text = (CONTRIB / name).read_text()
    variable = re.search(r"^#   (\w+)=(.+)$", text, re.MULTILINE)
    assert variable is not None
    assert unit(name)["Service"]["ExecStart"].endswith(f"${variable[1]}")
    assert flags_in(variable[2])
    assert set(flags_in(variable[2])) <= {flag.name for flag in UNITS[name]}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_has_nothing_to_say_about_a_unit(name: str, tmp_path: Path) -> None:
    text = (CONTRIB / name).read_text()
    command = unit(name)["Service"]["ExecStart"].split()[0]
    path = tmp_path / name
    path.write_text(text.replace(command, "/bin/true"))
    verify = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if path.name in line]) == (0, [])


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (CONTRIB / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def test_the_dockerfile_is_made_of_instructions_that_docker_has() -> None:
    known = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    names = [name for name, _ in instructions()]
    assert set(names) <= known | {"ENTRYPOINT"}
    assert names[:2] == ["ARG", "FROM"]
    assert names[-1] == "ENTRYPOINT"
    for name, argument in instructions():
        if name in ("ENTRYPOINT", "HEALTHCHECK"):
            assert all(isinstance(word, str) for word in json.loads(argument[argument.index("[") :]))


def test_the_image_runs_the_daemon_as_an_unprivileged_user_on_its_ports() -> None:
    found = dict(instructions())
    program, *flags = json.loads(found["ENTRYPOINT"])
    assert program in project()["project"]["scripts"]
    assert set(flags_in(" ".join(flags))) <= {flag.name for flag in FLAGS}
    assert found["USER"] not in ("", "root", "0")
    options = parse_args([])
    ports = [address.rpartition(":")[2] for address in (options.tcp_address, options.http_address)]
    assert found["EXPOSE"].split() == ports
    assert f"127.0.0.1:{ports[1]}/ping" in found["HEALTHCHECK"]


def test_the_image_is_built_from_existing_files_and_has_all_that_the_wheel_needs() -> None:
    sources = [argument.split()[-2] for name, argument in instructions() if name == "COPY"]
    assert sources == [".", "/dist"]
    ignore = (CONTRIB / "Dockerfile.dockerignore").read_text().split()
    kept = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert ignore[0] == "**"
    assert all((ROOT / name).exists() for name in kept)
    assert "scripts/contrib/constraints.txt" in kept
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "pyx", "pyqd", "scripts/build/client"} <= set(kept)


def test_the_image_pins_every_package_that_it_installs() -> None:
    lines = (CONTRIB / "constraints.txt").read_text().splitlines()
    pinned = {re.sub("[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if "==" in line}
    extras = project()["project"]["optional-dependencies"]
    wanted = [*project()["project"]["dependencies"], *extras["admin"]]
    for extra in re.findall("[a-z0-9]+", extras["server"][0].partition("[")[2]):
        wanted += extras[extra]
    names = {re.split("[>=;]", each)[0].replace("_", "-").lower() for each in wanted if "python_version" not in each}
    assert names - {"pyqd-client"} - pinned == set()


def services() -> dict[str, Any]:
    found = document((CONTRIB / "compose.yaml").read_text())
    named: dict[str, Any] = found["services"]
    return named


def test_the_services_of_compose_run_our_programs_with_their_flags_and_find_each_other() -> None:
    broker, lookupd, admin = (services()[name] for name in ("broker", "lookupd", "admin"))
    options = parse_args(broker["command"])
    assert options.lookupd_tcp_address == ("lookupd:4160",)
    assert set(flags_in(" ".join(lookupd["command"]))) <= {flag.name for flag in LOOKUP_DAEMON.flags}
    assert flags_in(" ".join(admin["command"])) == ["nsqd-http-address"]
    assert admin["command"][0].endswith("=broker:" + options.http_address.rpartition(":")[2])
    for service in (broker, lookupd, admin):
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert set(service.get("entrypoint", [])) <= set(project()["project"]["scripts"])
