"""Tests of the Helm chart: its manifests fit together, and name programs, flags, ports and services that exist."""

import re
import subprocess
import sys
from typing import Any

import pytest

from pyqd.config.options import Options, parse_args
from pyqd.lookupd.options import LOOKUP_DAEMON, LookupOptions
from pyqd.primitives.durations import SECOND_NS
from tests.meta.repository import ROOT, project
from tests.support.http_target import Answer, http_target
from tests.support.manifests import document, documents

NAMES = ("pyqd", "pyqlookupd")
CHART = ROOT / "scripts" / "contrib" / "helm"
SETTINGS = document((CHART / "values.yaml").read_text())
FLAGS = re.compile(r"^ *\{\{- range \.Values\.(\w+) \}\}\n.*?\{\{- end \}\}\n", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"\{\{ \.Values\.(\w+)( \| quote)? \}\}")


def rendered(template: str) -> str:
    """Return a template with the chart's own values: texts, numbers, and empty lists of flags."""
    text = FLAGS.sub(lambda match: "".join(SETTINGS[match[1]]), template)
    text = SETTING.sub(lambda match: f'"{SETTINGS[match[1]]}"' if match[2] else str(SETTINGS[match[1]]), text)
    assert "{{" not in text
    return text


DOCUMENTS = {name: documents(rendered((CHART / "templates" / f"{name}.yaml").read_text())) for name in NAMES}
VALUES = {"metadata.name": "{name}-1", "metadata.namespace": "jobs"}
PROBE_WAIT_S = 60
# TimeoutStopSec of the unit for systemd.
STOP_S = 300


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [found for found in DOCUMENTS[name] if found["kind"] == kind]


def stateful_set(name: str) -> dict[str, Any]:
    (found,) = of_kind(name, "StatefulSet")
    spec: dict[str, Any] = found["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (found,) = stateful_set(name)["template"]["spec"]["containers"]
    return dict(found)


def arguments(name: str) -> list[str]:
    """Return the arguments of a pod, with its variables in place."""
    variables = {
        entry["name"]: VALUES[entry["valueFrom"]["fieldRef"]["fieldPath"]].format(name=name)
        for entry in container(name)["env"]
    }
    return [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text) for text in container(name)["args"]]


def broker_options() -> Options:
    return parse_args(arguments("pyqd"))


def lookup_options() -> LookupOptions:
    return LOOKUP_DAEMON.parse_settings(arguments("pyqlookupd")).options()


def liveness(port: int) -> int:
    """Run the liveness probe of the broker against a port. Returns: its exit code."""
    program, *words = container("pyqd")["livenessProbe"]["exec"]["command"]
    assert program == "python"
    http_port = broker_options().http_address.rpartition(":")[2]
    command = [sys.executable, *(word.replace(http_port, str(port)) for word in words)]
    assert str(port) in command[-1]
    return subprocess.run(command, capture_output=True, timeout=PROBE_WAIT_S, check=False).returncode


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_runs_our_program(name: str) -> None:
    assert container(name)["command"] == [name]
    assert name in project()["project"]["scripts"]


def test_the_flags_are_valid_and_a_broker_broadcasts_its_name_in_the_headless_service() -> None:
    assert broker_options().broadcast_address == f"pyqd-1.{stateful_set('pyqd')['serviceName']}.jobs.svc"
    assert lookup_options().broadcast_address == f"pyqlookupd-1.{stateful_set('pyqlookupd')['serviceName']}.jobs.svc"


def test_a_broker_registers_with_every_lookup_daemon_of_which_there_are_two() -> None:
    spec = stateful_set("pyqlookupd")
    port = lookup_options().tcp_address.rpartition(":")[2]
    pods = [f"pyqlookupd-{number}.{spec['serviceName']}:{port}" for number in range(spec["replicas"])]
    assert len(pods) == 2
    assert list(broker_options().lookupd_tcp_address) == pods


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_named_by_a_headless_service_that_selects_them(name: str) -> None:
    spec = stateful_set(name)
    labels = spec["template"]["metadata"]["labels"]
    services = {found["metadata"]["name"]: found["spec"] for found in of_kind(name, "Service")}
    assert services[spec["serviceName"]]["clusterIP"] == "None"
    assert all(service["selector"] == labels for service in services.values())
    assert spec["selector"]["matchLabels"] == labels
    (budget,) = of_kind(name, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", NAMES)
def test_the_ports_are_those_of_the_program(name: str) -> None:
    options = broker_options() if name == "pyqd" else lookup_options()
    expected = {
        "tcp": int(options.tcp_address.rpartition(":")[2]),
        "http": int(options.http_address.rpartition(":")[2]),
    }
    assert {port["name"]: port["containerPort"] for port in container(name)["ports"]} == expected
    for service in of_kind(name, "Service"):
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == expected
    probes = [container(name)[key] for key in container(name) if key.endswith("Probe")]
    named = [probe.get("httpGet", probe.get("tcpSocket", {})).get("port", "http") for probe in probes]
    assert len(named) >= 2
    assert set(named) == {"http"}
    assert container(name)["readinessProbe"]["httpGet"]["path"] == "/ping"


def test_the_data_of_a_broker_is_in_its_volume() -> None:
    (mount,) = container("pyqd")["volumeMounts"]
    (claim,) = stateful_set("pyqd")["volumeClaimTemplates"]
    assert mount["name"] == claim["metadata"]["name"]
    assert broker_options().data_path == mount["mountPath"]


def test_a_pod_is_not_killed_before_its_broker_has_drained_and_stopped() -> None:
    drain_s = broker_options().drain_timeout_ns / SECOND_NS
    program, before_s = container("pyqd")["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert drain_s > 0
    grace_s = stateful_set("pyqd")["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= int(before_s) + drain_s + STOP_S


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 500])
def test_a_broker_that_answers_ping_is_alive_also_while_it_drains(status: int) -> None:
    with http_target(lambda _: Answer(status)) as target:
        assert liveness(target.port) == 0


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_not_alive() -> None:
    with http_target() as target:
        pass
    assert liveness(target.port) != 0


@pytest.mark.parametrize(
    "text",
    ["a: yes\n", "a: 1\na: 2\n", "a: |\n  b\n", "a: {b: 1}\n", "a: b # c\n", "a:\nb: 1\n", "a: 1\n  b: 2\n", "- 1\n"],
)
def test_yaml_beyond_the_part_that_is_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the parser or of json
        document(text)


def test_collections_and_values_are_read() -> None:
    text = 'a:\n  - b: 1\n    c: ["x"]\n  - "y: z"\n# comment\nd: true\ne:\n  f.g/h: 20Gi\n'
    assert document(text) == {"a": [{"b": 1, "c": ["x"]}, "y: z"], "d": True, "e": {"f.g/h": "20Gi"}}


def test_the_parts_of_a_file_are_told_apart() -> None:
    kinds = [found["kind"] for found in DOCUMENTS["pyqd"]]
    assert kinds == ["Service", "Service", "PodDisruptionBudget", "StatefulSet"]
