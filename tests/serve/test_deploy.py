"""The files of deploy/: they parse, agree with each other, and use only flags and metrics that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import Served
from weft.serve.limits import LEAST_KEY, ServeOptions

yaml = pytest.importorskip("yaml")
pytest.importorskip("prometheus_client")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORT = ServeOptions().port
FLAGS = {flag for field in fields(ServeOptions) for flag in field.metadata["option"].flags}
FLAGS = {part for flag in FLAGS for part in flag.split("/")}


def text(name: str) -> str:
    return (DEPLOY / name).read_text()


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(text(name)))


def instruction(word: str) -> list[str]:
    """The arguments of an instruction of the Containerfile, in its last stage."""
    joined = re.sub(r"\\\n\s*", " ", text("Containerfile")).rpartition("\nFROM ")[2]
    return re.findall(rf"^{word} (.*)$", joined, re.MULTILINE)


def start_of(words: list[str]) -> dict[str, str]:
    """The flags of a call of `weft serve`, each of them known."""
    given = {}
    for number, word in enumerate(words):
        if word.startswith("--"):
            assert word in FLAGS, f"{word} is no flag of weft serve"
            given[word] = words[number + 1]
    return given


def entry() -> list[str]:
    return json.loads(instruction("ENTRYPOINT")[0])


def compose(service: str = "weft") -> Any:
    return documents("compose.yaml")[0]["services"][service]


def kubernetes(kind: str) -> Any:
    return next(each for each in documents("kubernetes.yaml") if each["kind"] == kind)


def container() -> Any:
    (only,) = kubernetes("Deployment")["spec"]["template"]["spec"]["containers"]
    return only


def unit() -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for line in text("weft.service").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section[name] = value
    return sections


# --------------------------------------------------------------------------------------------------------- commands


def test_every_start_uses_flags_and_ports_of_the_server() -> None:
    assert entry()[:2] == ["weft", "serve"]
    own = start_of(entry())
    assert own == {"--host": "0.0.0.0", "--port": str(PORT)}
    for words in (compose()["command"], container()["args"]):
        flags = start_of(words)
        assert "--api-key" in flags and not {"--host", "--port"} & set(flags)  # the image has them
        assert flags["--drain"] == f"{ServeOptions().drain:g}"
        assert words[0].startswith("/models/")
        assert flags["--allow-host"] == "weft"  # the name by which Prometheus and other pods reach it
    start = unit()["Service"]["ExecStart"].split()
    assert start_of(start)["--host"] == "127.0.0.1" and start_of(start)["--port"] == str(PORT)


def test_ports_agree() -> None:
    assert instruction("EXPOSE") == [str(PORT)] and f"127.0.0.1:{PORT}/health" in instruction("HEALTHCHECK")[0]
    assert compose()["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    (port,) = container()["ports"]
    assert port["containerPort"] == PORT
    (served,) = kubernetes("Service")["spec"]["ports"]
    assert served["port"] == PORT and served["targetPort"] == port["name"]
    (opened,) = kubernetes("NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert opened["port"] == PORT
    (scrape,) = documents("prometheus.yaml")[0]["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"weft:{PORT}"]}] and scrape["metrics_path"] == "/metrics"
    for service in ("prometheus", "grafana"):  # nobody else's machine reaches them
        assert all(each.startswith("127.0.0.1:") for each in compose(service)["ports"])


def test_whoever_stops_it_waits_longer_than_it_drains() -> None:
    drain = ServeOptions().drain
    pod = kubernetes("Deployment")["spec"]["template"]["spec"]
    before = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + before
    assert int(compose()["stop_grace_period"].removesuffix("s")) > drain
    assert int(unit()["Service"]["TimeoutStopSec"]) > drain
    assert unit()["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID" and unit()["Service"]["KillMode"] == "mixed"
    assert instruction("STOPSIGNAL") == ["SIGTERM"]


def test_probes_ask_routes_that_need_no_key() -> None:
    paths = {name: container()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: probe["path"] for name, probe in paths.items()} == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }


# ----------------------------------------------------------------------------------------------------------- safety


def test_containers_may_do_nothing_that_they_need_not() -> None:
    assert instruction("USER") == ["10001:10001"]
    service = compose()
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(volume.endswith(":ro") for volume in service["volumes"] if ":/models" in volume)
    pod = kubernetes("Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container()["securityContext"]
    assert own["readOnlyRootFilesystem"] is True and own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    writable = {mount["mountPath"] for mount in container()["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/cache", "/tmp"} and "WEFT_CACHE=/cache" in instruction("ENV")[0]
    assert set(container()["resources"]) == {"requests", "limits"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes == {mount["name"] for mount in container()["volumeMounts"]}
    assert kubernetes("NetworkPolicy")["spec"]["egress"] == []


def test_keys_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = compose()
    (secret,) = service["secrets"]
    assert start_of(service["command"])["--api-key"] == f"/run/secrets/{secret}"
    (scrape,) = documents("prometheus.yaml")[0]["scrape_configs"]
    assert scrape["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    file = documents("compose.yaml")[0]["secrets"][secret]["file"]
    assert f"/deploy/{Path(file).parent}/" in (ROOT / ".gitignore").read_text().splitlines()
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert start_of(container()["args"])["--api-key"].startswith(mounts["key"])
    assert unit()["Service"]["LoadCredential"].startswith("key:") and "%d/key" in unit()["Service"]["ExecStart"]
    for name in ("compose.yaml", "kubernetes.yaml"):  # the key that its first lines make is one that the server takes
        assert (made := re.search(r"openssl rand -hex (\d+)", text(name))) and 2 * int(made[1]) >= LEAST_KEY
    monkeypatch.delenv("WEFT_API_KEY", raising=False)
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    options = ServeOptions(host="0.0.0.0", api_key=str(key))
    assert options.key() == key.read_text().strip()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    path = tmp_path / "weft.service"
    path.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", text("weft.service"), flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and "weft.service" not in done.stderr, done.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "Unknown" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert done.returncode == 0, done.stdout[-300:]


def test_the_image_has_the_extras_that_a_server_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = re.findall(r"'\.\[([\w,-]+)\]'", text("Containerfile"))
    assert "serve" in installed.split(",") and set(installed.split(",")) <= set(extras)
    copied = re.search(r"^COPY (.*) \./$", text("Containerfile"), re.MULTILINE)
    assert copied and all((ROOT / name).is_file() for name in copied[1].split())


# ---------------------------------------------------------------------------------------------------------- metrics


def exposed(server: Served) -> set[str]:
    """Names of the samples of a server that has answered, and refused, requests."""
    for model in ("reviews", "nobody"):
        server.post("/v1/classify", {"model": model, "input": "The weaver sang."})
    server.post("/v1/complete", {"model": "gpt", "input": "The weaver", "max_tokens": 2})
    return set(re.findall(r"^(\w+)", server.get("/metrics").body.decode(), re.MULTILINE))


def test_dashboard_and_alerts_use_metrics_that_the_server_has(server: Served) -> None:
    there = exposed(server)
    dashboard = json.loads(text("grafana/dashboard.json"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    alerts = [rule for group in documents("alerts.yaml")[0]["groups"] for rule in group["rules"]]
    expressions += [rule["expr"] for rule in alerts]
    used = {name for expression in expressions for name in re.findall(r"\bweft_\w+", expression)}
    assert used <= there, used - there
    documented = set(re.findall(r"`(weft_\w+)`", (ROOT / "docs" / "serve.md").read_text()))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in there if not name.endswith("_created")}
    assert documented == names


def test_what_compose_mounts_is_there_and_fits() -> None:
    service = compose("grafana")
    (source,) = documents("grafana/datasource.yaml")[0]["datasources"]
    for volume in (*service["volumes"], *compose("prometheus")["volumes"]):
        name = volume.split(":")[0]
        assert not name.startswith("./") or (DEPLOY / name).is_file(), name
    dashboard = json.loads(text("grafana/dashboard.json"))
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24  # no panel lies on another
    (provider,) = documents("grafana/dashboards.yaml")[0]["providers"]
    assert any(volume.split(":")[1].startswith(provider["options"]["path"]) for volume in service["volumes"])
    assert documents("prometheus.yaml")[0]["rule_files"] == ["/etc/prometheus/alerts.yaml"]
