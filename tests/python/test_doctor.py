"""`weightcast doctor` on hosts made of namespaces, each with a fault planted, and on this machine."""

import email.utils
import http.server
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest

from cli import run
from doctor_report import finding, troubles
from netns import Network, make_network

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "GLOO_"))}
# A probe may take 3 s; the rest is for a busy machine.
PATIENCE = 60


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network("prlimit", "setpriv", "unshare")
    try:
        made.add_host("node1", "10.99.0.1/24")
        yield made
    finally:
        made.close()


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n10.99.0.1 node1\n10.99.0.2 near\n10.98.0.1 far\n")
    return path


def doctor(*arguments: object, prefix=(), env=None, code: int | None = None) -> dict:
    result = run(
        "doctor", "--json", *arguments, prefix=prefix, env={**CLEAN, **(env or {})}, timeout=PATIENCE
    )
    report = json.loads(result.stdout)
    assert result.returncode == (1 if report["worst"] == "fail" else 0), result.stderr
    assert code is None or result.returncode == code, (report["findings"], result.stderr)
    return report


def under(command: str, *words: object) -> list[str]:
    """Runs a line of shell, in a mount namespace of its own, before what follows."""
    return [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'{command} && shift {len(words)} && exec "$@"',
        "sh",
        *map(str, words),
    ]


def test_this_machine_has_no_fail_and_answers_in_time():
    begin = time.monotonic()
    report = doctor()
    # Of the limits that this machine really has, no more.
    assert [one for one in troubles(report) if not one.startswith(("host.name", "limits."))] == []
    assert time.monotonic() - begin < 30
    assert report["facts"]["missed"] == {}


def test_a_healthy_host(network: Network, hosts: pathlib.Path):
    report = doctor("--controller", "near:29750", prefix=network.inside("node1", hosts))
    assert [one for one in troubles(report) if not one.startswith("limits.")] == []
    assert finding(report, "host.name")["level"] == "ok"
    assert "10.99.0.1 on eth0" in finding(report, "host.route")["text"]
    assert finding(report, "rdma.device")["level"] == "not_applicable"
    assert report["exports"]["GLOO_SOCKET_IFNAME"] == "eth0"


def test_a_name_that_is_loopback(network: Network, hosts: pathlib.Path):
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node1\n")
    report = doctor(prefix=network.inside("node1", hosts))
    found = finding(report, "host.name")
    assert found["level"] == "warn"
    assert "127.0.1.1" in found["text"]
    assert found["remedy"].startswith("export GLOO_SOCKET_IFNAME=eth0")
    # The remedy is one.
    report = doctor(prefix=network.inside("node1", hosts), env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert finding(report, "host.name")["level"] == "ok"


def test_an_interface_that_does_not_exist(network: Network, hosts: pathlib.Path):
    report = doctor(prefix=network.inside("node1", hosts), env={"NCCL_SOCKET_IFNAME": "ens192"}, code=1)
    found = finding(report, "host.named_interface")
    assert found["level"] == "fail"
    assert "ens192" in found["text"]
    assert found["remedy"] == "export NCCL_SOCKET_IFNAME=eth0"


def test_another_subnet(network: Network, hosts: pathlib.Path):
    report = doctor("--controller", "far:29750", prefix=network.inside("node1", hosts), code=1)
    found = finding(report, "host.route")
    assert found["level"] == "fail"
    assert "10.98.0.1" in found["evidence"]


def test_few_descriptors(network: Network, hosts: pathlib.Path):
    limit = [*network.inside("node1", hosts), "prlimit", "--nofile=256:256"]
    found = finding(doctor(prefix=limit, code=1), "limits.descriptors")
    assert found["level"] == "fail"
    assert "256" in found["text"]
    assert "nofile" in found["remedy"].lower()  # Another command in a container.


def test_a_small_shm(network: Network, hosts: pathlib.Path):
    prefix = [*network.inside("node1", hosts), *under("mount -t tmpfs -o size=64m tmpfs /dev/shm")]
    found = finding(doctor(prefix=prefix), "limits.shm")
    assert found["level"] == "warn"
    assert "67.1 MB" in found["text"]


def recorded(folder: pathlib.Path, **changes: str) -> pathlib.Path:
    """A small /sys with one RDMA port over Ethernet."""
    port = "class/infiniband/mlx5_0/ports/1"
    files = {
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/link_layer": "Ethernet",
        f"{port}/rate": "100 Gb/sec (4X EDR)",
        f"{port}/gids/0": "0000:0000:0000:0000:0000:ffff:0a63:0001",
        f"{port}/gid_attrs/types/0": "RoCE v2",
        "class/infiniband/mlx5_0/parent": "eth0",
        "class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
        "class/net/eth0/operstate": "up",
        "class/net/eth0/mtu": "9000",
        "module/ib_uverbs/initstate": "live",
    }
    for name, text in {**files, **changes}.items():
        path = folder / name.replace("PORT", port)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_little_memlock_with_rdma(network: Network, hosts: pathlib.Path, tmp_path: pathlib.Path):
    tree = recorded(tmp_path / "sys")
    inside = [*network.inside("node1", hosts), *under('mount --bind "$1" /sys', tree)]
    limit = ["prlimit", "--memlock=65536:65536"]
    report = doctor(prefix=[*inside, *limit])
    assert "IPC_LOCK" in finding(report, "limits.memlock")["text"]
    weak = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
    found = finding(doctor(prefix=[*inside, *limit, *weak], code=1), "limits.memlock")
    assert found["level"] == "fail"
    assert "65.5 KB" in found["text"]
    assert "memlock" in found["remedy"].lower()


def test_a_port_without_roce_v2(network: Network, hosts: pathlib.Path, tmp_path: pathlib.Path):
    tree = recorded(tmp_path / "sys", **{"PORT/gid_attrs/types/0": "IB/RoCE v1"})
    inside = [*network.inside("node1", hosts), *under('mount --bind "$1" /sys', tree)]
    report = doctor(prefix=inside, code=1)
    assert "ip address add" in finding(report, "rdma.gid")["remedy"]
    assert report["exports"]["NCCL_IB_DISABLE"] == "1"


def test_a_resolver_that_does_not_answer(network: Network, hosts: pathlib.Path, tmp_path: pathlib.Path):
    hosts.write_text("127.0.0.1 localhost\n")
    server = tmp_path / "resolv.conf"
    server.write_text("nameserver 10.99.0.77\n")
    prefix = [*network.inside("node1", hosts), *under('mount --bind "$1" /etc/resolv.conf', server)]
    begin = time.monotonic()
    report = doctor(prefix=prefix)
    assert time.monotonic() - begin < 30
    assert list(report["facts"]["missed"]) == ["names"]
    found = finding(report, "host.probe")
    assert (found["level"], found["subject"]) == ("warn", "names")
    assert finding(report, "limits.descriptors")["level"] in ("ok", "warn")


class Late(http.server.BaseHTTPRequestHandler):
    offset = 0.0

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(time.time() + self.offset, usegmt=True)

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def reference() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(("offset", "level"), [(0, "ok"), (3600, "fail"), (-3600, "fail"), (60, "warn")])
def test_the_clock(reference: str, monkeypatch: pytest.MonkeyPatch, offset: float, level: str):
    monkeypatch.setattr(Late, "offset", offset)
    found = finding(doctor("--clock", reference), "host.clock")
    assert found["level"] == level
    assert offset == 0 or ("behind" if offset > 0 else "ahead") in found["text"]


def test_a_clock_without_reference_is_not_judged():
    assert finding(doctor(), "host.clock")["level"] == "not_applicable"
    assert finding(doctor("--clock", "127.0.0.1:1"), "host.clock")["level"] == "not_applicable"


def test_bundle_and_baseline(tmp_path: pathlib.Path):
    bundle = tmp_path / "doctor.json"
    secret = {"WEIGHTCAST_TOKEN": "0123456789abcdef0123456789abcdef", "NCCL_DEBUG": "WARN"}
    doctor("--bundle", bundle, env=secret)
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert secret["WEIGHTCAST_TOKEN"] not in bundle.read_text()
    assert json.loads(bundle.read_text())["facts"]["environment"]["NCCL_DEBUG"] == "WARN"
    assert doctor("--baseline", bundle, env=secret)["changes"] == []
    changes = doctor("--baseline", bundle, env={**secret, "NCCL_DEBUG": "INFO"})["changes"]
    assert changes == ["environment.NCCL_DEBUG: WARN -> INFO"]
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    result = run("doctor", "--baseline", broken)
    assert result.returncode == 1
    assert "broken.json: this is not a report" in result.stderr


def test_text_and_exports():
    text = run("doctor", env={**CLEAN, "GLOO_SOCKET_IFNAME": "bond7"})
    assert text.returncode == 1
    assert "  FAIL  named_interface GLOO_SOCKET_IFNAME: " in text.stdout
    assert text.stdout.rstrip().splitlines()[-1].endswith(" FAIL")
    assert "weightcast: 1 check is FAIL" in text.stderr
    exports = run("doctor", "--print-env", env={**CLEAN, "GLOO_SOCKET_IFNAME": "bond7"})
    assert exports.returncode == 0
    assert all(line.startswith("export ") for line in exports.stdout.splitlines())
