"""Shared pieces of the Python tests: a controller, worker processes, and the binary."""

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from processes import Child

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FAST = {"lease": 1, "connect_timeout": 5, "timeout": 20}
# Their tests train models in many processes, for minutes: `make test-python TRAINING=only` or `TRAINING=no`.
TRAINING = {
    "test_ddp_gpt2_namespaces.py",
    "test_ddp_gpt2_runs.py",
    "test_ray.py",
    "test_rl_checkpoint.py",
    "test_rl_collectives.py",
    "test_rl_disk_full.py",
    "test_rl_launch.py",
    "test_rl_learner.py",
    "test_rl_loop.py",
    "test_rl_namespaces.py",
}
# A minute and more each: `make test` leaves them to `make test-all`.
SLOW = {
    "test_cli_bench_p2p.py",
    "test_cpp_package.py",
    "test_device_collective.py",
    "test_doctor_cluster.py",
    "test_doctor_peer.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in TRAINING:
            item.add_marker(pytest.mark.training)
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(function: Callable[..., Any], *arguments: Any) -> Child:
        children.append(Child(function, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def controller() -> Iterator[str]:
    import weightcast as wc

    with wc.Controller("127.0.0.1:0", settings=FAST) as running:
        yield running.address


@pytest.fixture
def pair() -> Iterator[Any]:
    from endpoints import Pair

    made = Pair()
    yield made
    made.close()


@pytest.fixture
def gpus(spawn: Callable[..., Child], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`spawn`, for functions that use the GPUs of one fake machine (gpus.py)."""
    from gpus import GPUS, LIBRARY

    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built; run `make test-cpp` first")
    machine = tmp_path / "machine"
    machine.mkdir()
    monkeypatch.setenv("WEIGHTCAST_CUDA_LIBRARY", os.fspath(LIBRARY))
    monkeypatch.setenv("FAKE_CUDA", f"dir={machine},gpus={GPUS}")
    monkeypatch.setenv("WEIGHTCAST_BIND", "127.0.0.1")
    return spawn


@pytest.fixture(scope="session")
def binary() -> pathlib.Path:
    path = ROOT / "build" / "weightcast"
    assert path.exists(), "run `make binary` first"
    return path


@pytest.fixture(autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's controller and workers share a token of their own."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("test-token-of-sufficient-length\n")
    token.chmod(0o600)
    monkeypatch.setenv("WEIGHTCAST_TOKEN_FILE", os.fspath(token))
