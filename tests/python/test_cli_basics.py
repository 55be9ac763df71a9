"""The binary's manners: help, JSON, exit codes, one-line errors."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from cli import BINARY, fails, only_json, run

COMMANDS = [
    ["demo"],
    ["controller"],
    ["trainer"],
    ["inference"],
    ["plan"],
    ["info"],
    ["doctor"],
    ["watch"],
    ["bench", "p2p"],
    ["bench", "floor"],
    ["bench", "update"],
    ["bench", "plan"],
    ["bench", "connect"],
    ["bench", "register"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_every_setting(command):
    result = run(*command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Example:\n  weightcast " + command[0] in result.stdout
    settings = run("info", "--settings-markdown").stdout
    for flag in re.findall(r"`(--[a-z-]+)`", settings):
        assert flag in result.stdout
    assert "--json" in result.stdout


def test_help_lists_every_command_but_the_hidden_ones():
    text = run("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command[0]} " in text
    assert "demo-worker" not in text
    listed = set(re.findall(r"^  (\w+) ", run("bench", "--help").stdout, re.MULTILINE))
    assert {"p2p", "update", "plan"} <= listed and not listed & {"floor", "connect", "register"}


def test_version():
    assert re.fullmatch(r"weightcast \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["subcommand", "--help"]),
        (["bench"], ["subcommand", "weightcast bench --help"]),
        (["demo", "--trainer"], ["--trainer", "weightcast demo --help"]),
        (["demo", "--trainers", "0"], ["--trainers", "'0'", "must be an integer in [1, "]),
        (["demo", "--trainers", "two"], ["--trainers", "'two'"]),
        (["demo", "--landing", "moon"], ["'moon'", "in_place|shadow"]),
        (
            ["demo", "--engines", "3", "--inference", "4"],
            ["4 inference ranks", "3 equal engines", "--inference"],
        ),
        (["demo", "--dtype", "f7"], ["'f7'", "BF16"]),
        (["demo", "--checkpoint", "/nowhere"], ["/nowhere"]),
        (["plan", "--lease", "soon"], ["lease", "'soon'", "seconds"]),
        (["plan", "--layout-trainers", "a.json"], ["--layout-inference"]),
        (["trainer"], ["--checkpoint", "required"]),
        (["inference", "--engine", "e"], ["--like", "--model"]),
        (["bench", "p2p", "--sizes", "many"], ["'many'", "64K"]),
        (["bench", "floor", "--what", "luck"], ["--what", "socket-ping"]),
        (["bench", "floor", "--sizes", "0"], ["'0'", "64K"]),
        (["bench", "update", "--versions", "1"], ["--versions", "2"]),
        (["bench", "update", "--sweep-trainers", "1,few"], ["--sweep-trainers", "'few'"]),
        (["bench", "connect", "--transports", "pigeon"], ["--transports", "tcp"]),
        (["bench", "register", "--inference", "3", "--engines", "2"], ["3 inference ranks", "--engines"]),
    ],
)
def test_bad_command_lines_are_one_line_errors(arguments, words):
    result = run(*arguments)
    fails(result, *words)
    assert result.stdout == ""


def test_a_bad_setting_in_the_environment_is_named():
    result = run("plan", env={**os.environ, "WEIGHTCAST_LEASE": "never"})
    fails(result, "WEIGHTCAST_LEASE", "'never'")


def test_an_unknown_setting_in_the_environment_is_a_warning():
    result = run("plan", "--json", env={**os.environ, "WEIGHTCAST_LAESE": "1"})
    assert "WEIGHTCAST_LAESE" in result.stderr
    only_json(result)


@pytest.mark.parametrize(
    "arguments", [["info"], ["plan"], ["bench", "plan", "--boxes", "1000", "--ranks", "4"]]
)
def test_json_is_one_object_and_nothing_else(arguments):
    assert isinstance(only_json(run(*arguments, "--json")), dict)


def test_info_tells_what_the_machine_has():
    info = only_json(run("info", "--json"))
    assert info["cpus"] == len(os.sched_getaffinity(0))
    assert {"shm", "tcp"} <= set(info["transports"])
    assert info["memfd"] is True
    assert any(entry["address"] == "127.0.0.1" for entry in info["addresses"])
    total_kb = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
    assert info["memory_bytes"] == total_kb * 1024


def test_info_tells_which_transports_work_and_why_not():
    info = only_json(run("info", "--json", "--transport", "tcp"))
    checks = {one["name"]: one for one in info["transport_checks"]}
    assert checks["tcp"] == {"name": "tcp", "works": True, "reason": None}
    left_out = "left out by setting transport; name it there to use it"
    assert checks["shm"] == {"name": "shm", "works": False, "reason": left_out}
    text = run("info", "--transport", "tcp").stdout
    assert re.search(r"^tcp +yes$", text, re.MULTILINE)
    assert re.search(rf"^shm +no: {left_out}$", text, re.MULTILINE)


def test_info_tells_about_rdma_ports_and_gpus():
    info = only_json(run("info", "--json"))
    verbs = next(one for one in info["transport_checks"] if one["name"] == "verbs")
    devices = pathlib.Path("/sys/class/infiniband")
    names = {path.name for path in devices.iterdir()} if devices.exists() else set()
    assert {port["device"] for port in info["rdma_ports"]} == names
    for port in info["rdma_ports"]:
        assert port["used"] == (port["reason"] is None)
    used = [port["name"] for port in info["rdma_ports"] if port["used"]]
    assert verbs["works"] or verbs["reason"]
    assert used or not verbs["works"]
    for one in info["gpus"] + info["numa_nodes"]:
        assert sorted(name for tier in one["nics"] for name in tier["names"]) == sorted(used)
    shown = run("info").stdout
    for port in info["rdma_ports"]:
        assert port["name"] in shown
    cuda = info["cuda"]
    assert cuda["works"] == (cuda["reason"] is None) == bool(cuda["devices"])
    assert "\nCUDA: " in shown


def test_the_settings_page_is_up_to_date():
    page = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "settings.md"
    assert page.read_text() == run("info", "--settings-markdown").stdout, "run `make docs`"


def test_a_full_disk_and_a_closed_pipe_are_errors():
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, "plan", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("weightcast: cannot write to standard output: No space left")
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([BINARY, "plan"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert result.returncode == 1
    assert "Broken pipe" in result.stderr


def dynamic_symbols() -> str:
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    return subprocess.run(["objdump", "-T", BINARY], capture_output=True, text=True, check=True).stdout


def test_the_binary_needs_only_glibc_2_34():
    needed = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].rsplit("/", 1)[-1] for line in needed.splitlines()}
    names = {name for name in names if not name.startswith(("linux-vdso", "ld-linux"))}
    assert names <= {"libc.so.6", "libm.so.6", "libgcc_s.so.1"}
    versions = [
        tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", dynamic_symbols())
    ]
    assert max(versions) <= (2, 34)


def test_plan_reports_balance_and_bound():
    plan = only_json(run("plan", "--model", "qwen2.5-0.5b", "--trainers", 8, "--inference", 8, "--json"))
    assert plan["tensors"] == 290
    assert plan["bytes"] == 8 * 988_065_536
    assert sum(plan["sender_bytes"]) == plan["bytes"]
    assert max(plan["sender_bytes"]) <= 1.01 * plan["bytes"] / 8
    assert plan["makespan_bytes"] >= plan["lower_bound_bytes"] >= 988_065_536


def test_plan_writes_tables_that_plan_reads(tmp_path):
    result = run("plan", "--trainers", 2, "--inference", 2, "--engines", 1, "--tables", tmp_path, "--json")
    plan = only_json(result)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "inference-00000.table",
        "inference-00001.table",
        "trainer-00000.table",
        "trainer-00001.table",
    ]
    tables = [only_json(run("plan", "--read", tmp_path / name, "--json")) for name in names]
    assert sum(table["routes"] for table in tables if table["role"] == "trainer") == plan["routes"]
    assert sum(table["routes"] for table in tables if table["role"] == "inference") == plan["routes"]


def test_wrong_table_files_are_refused(tmp_path):
    only_json(run("plan", "--tables", tmp_path, "--json"))
    good = (tmp_path / "trainer-00000.table").read_bytes()
    broken = tmp_path / "broken.table"
    broken.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    fails(run("plan", "--read", broken), "broken.table", "checksum")
    broken.write_bytes(good[: len(good) // 2])
    fails(run("plan", "--read", broken), "broken.table")
    # The version of the format stands after the mark.
    at = next(i for i in range(4, 12) if good[i : i + 4] == (1).to_bytes(4, "little"))
    broken.write_bytes(good[:at] + (7).to_bytes(4, "little") + good[at + 4 :])
    fails(run("plan", "--read", broken), "broken.table", "version")


def layout(ranks: int, tensors: list[dict]) -> str:
    return json.dumps({"version": 1, "ranks": ranks, "tensors": tensors})


def tensor(name: str, shape: list[int], boxes: list[list], dtype: str = "F32") -> dict:
    return {"name": name, "dtype": dtype, "shape": shape, "boxes": boxes}


WHOLE = tensor("w", [8, 4], [[0, [0, 0], [8, 4]]])


@pytest.mark.parametrize(
    ("trainers", "inference", "words"),
    [
        (tensor("w", [8, 4], [[0, [0, 0], [5, 4]], [1, [4, 0], [4, 4]]]), WHOLE, ["'w'", "overlap"]),
        (tensor("w", [8, 4], [[0, [0, 0], [3, 4]], [1, [4, 0], [4, 4]]]), WHOLE, ["'w'", "[3:4, 0:4]"]),
        (tensor("w", [8, 4], [[0, [0, 0], [8, 5]]]), WHOLE, ["[8, 4]"]),
        (tensor("w", [4, 8], [[0, [0, 0], [4, 8]]]), WHOLE, ["w", "[4, 8]", "[8, 4]"]),
        (tensor("v", [8, 4], [[0, [0, 0], [8, 4]]]), WHOLE, ["v"]),
        (tensor("w", [8, 4], [[0, [0, 0], [8, 4]]], "I64"), WHOLE, ["w", "I64", "F32"]),
        (tensor("w", [8, 4], [[0, [0, 0], [8, 4]]], "F31"), WHOLE, ["dtype"]),
    ],
    ids=["overlap", "missing", "outside", "shapes", "partner", "dtypes", "unknown dtype"],
)
def test_layouts_that_cannot_be_planned_say_why(tmp_path, trainers, inference, words):
    (tmp_path / "t.json").write_text(layout(2, [trainers]))
    (tmp_path / "i.json").write_text(layout(1, [inference]))
    result = run("plan", "--layout-trainers", tmp_path / "t.json", "--layout-inference", tmp_path / "i.json")
    fails(result, *words)
    assert result.stdout == ""
