"""weightcast.p2p: the calls of the UCCL P2P engine."""

import inspect
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from weightcast import p2p
from weightcast.errors import InvalidArgument

HERE = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIGHTCAST_LEASE", "1")
    monkeypatch.setenv("WEIGHTCAST_CONNECT_TIMEOUT", "5")
    monkeypatch.setenv("WEIGHTCAST_PORT_RANGE", "20000-60000")  # Several runs share the machine.


class Pair:
    """Two endpoints of this process, connected."""

    def __init__(self):
        self.a, self.b = p2p.Endpoint(0), p2p.Endpoint(1)
        ip, port, gpu = p2p.Endpoint.parse_metadata(self.b.get_metadata())
        ok, self.to_b = self.a.connect(ip, gpu, port)
        assert ok, self.a.last_error
        ok, self.ip, self.gpu, self.to_a = self.b.accept()
        assert ok, self.b.last_error


@pytest.fixture
def pair():
    return Pair()


def of(array):
    return array.ctypes.data, array.nbytes


def registered(endpoint, array):
    ok, mr = endpoint.reg(*of(array))
    assert ok, endpoint.last_error
    return mr, *of(array)


# --- The interface, name by name.


def api():
    """(name, [argument names]) of every call in the list of the other engine."""
    text = (HERE / "uccl_p2p_api.txt").read_text()
    for line in text.splitlines():
        line = line.split("->")[0].split(" | ")[0] if "(" in line else ""
        if line.startswith("#") or not (found := re.match(r"^([\w/ ]+?)\s*\((.*)\)\s*$", line.strip())):
            continue
        names, arguments = found.groups()
        words = [re.split(r"[:=]", word)[0].strip() for word in arguments.split(",") if word.strip()]
        for name in re.split(r"\s*/\s*", names):
            yield name, words


CALLS = list(api())


def test_the_list_was_read():
    names = {name for name, _ in CALLS}
    assert len(names) > 45
    assert {
        "connect",
        "writev_ipc_async",
        "recvv_async",
        "deserialize_descs",
        "poll_async",
        "Endpoint",
    } <= names


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[f"{name}({len(words)})" for name, words in CALLS])
def test_every_call_is_there_with_its_arguments(name, arguments):
    call = p2p.Endpoint if name == "Endpoint" else getattr(p2p.Endpoint, name)
    parameters = list(inspect.signature(call).parameters.values())
    if name not in ("Endpoint", "parse_metadata"):
        parameters = parameters[1:]  # self
    given = [parameter.name for parameter in parameters]
    unnamed = [word for word in arguments if word.startswith("[") or word == "ip" or word == "bytes"]
    for place, word in enumerate(arguments):
        if word in unnamed:
            assert place < len(parameters)  # The list gives what it is, not what it is called.
        elif word == "remote_gpu_idx":
            assert word in given
        else:
            assert given[place] == word
    free = [one for one in parameters[len(arguments) :] if one.default is inspect.Parameter.empty]
    assert not free


def test_the_modules_names_are_there():
    line = next(
        one for one in (HERE / "uccl_p2p_api.txt").read_text().splitlines() if one.startswith("module:")
    )
    for name in line.removeprefix("module:").split():
        assert hasattr(p2p, name), name


# --- What calls do.


def test_a_script_with_only_its_import_changed():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(HERE / "p2p_script.py")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 done" in done.stdout and "rank 1 done" in done.stdout


def test_examples_of_the_older_release(pair):
    """Server and client, an array, and the GPU as a number."""
    endpoint = p2p.Endpoint(local_gpu_idx=3, num_cpus=4)
    ip, port, _ = p2p.Endpoint.parse_metadata(pair.a.get_metadata())
    ok, conn_id = endpoint.connect(ip, remote_gpu_idx=1, remote_port=port)
    assert ok, endpoint.last_error
    ok, remote_ip_addr, remote_gpu_idx, server_conn = pair.a.accept()
    assert (ok, remote_ip_addr, remote_gpu_idx) == (True, ip, 3)
    data = np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32)
    ok, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
    assert ok
    received = np.zeros_like(data)
    ok, recv_mr_id = pair.a.reg(*of(received))
    assert ok
    ok, tid = pair.a.recv_async(server_conn, recv_mr_id, *of(received))
    assert ok
    assert endpoint.send(conn_id, mr_id, *of(data))
    done = False
    while not done:
        ok, done = pair.a.poll_async(tid)
        assert ok
    np.testing.assert_array_equal(received, data)


def test_vectors_one_sided(pair):
    here = [np.full(100, value, np.uint8) for value in (1, 2, 3)]
    there = [np.zeros(100, np.uint8) for _ in here]
    ok, mrs = pair.a.regv(*zip(*map(of, here), strict=True))
    assert ok
    pointers, sizes = map(list, zip(*map(of, there), strict=True))
    ok, remote = pair.b.regv(pointers, sizes)
    assert ok
    ok, metas = pair.b.advertisev(pair.to_a, remote, pointers, sizes, 3)
    assert ok and [len(meta) for meta in metas] == [64] * 3
    mine, lengths = map(list, zip(*map(of, here), strict=True))
    assert pair.a.writev(pair.to_b, mrs, mine, lengths, metas, 3)
    for left, right in zip(here, there, strict=True):
        np.testing.assert_array_equal(left, right)
        right[:] = 9
    assert pair.a.readv(pair.to_b, mrs, mine, lengths, metas, 3)
    assert all((array == 9).all() for array in here)
    assert not pair.a.writev(pair.to_b, mrs, mine, lengths, metas, 2)
    assert "for 2 pieces" in pair.a.last_error


def test_ipc_calls_need_no_registration(pair):
    here, there = np.arange(1000, dtype=np.int64), np.zeros(1000, np.int64)
    ok, tid = pair.b.recv_ipc_async(pair.to_a, *of(there))
    assert ok
    assert pair.a.send_ipc(pair.to_b, *of(here))
    while not pair.b.poll_async(tid)[1]:
        pass
    np.testing.assert_array_equal(here, there)
    ok, info = pair.b.advertise_ipc(pair.to_a, *of(there))
    assert ok
    here[:] = 7
    assert pair.a.write_ipc(pair.to_b, *of(here), info)
    assert (there == 7).all()
    there[:] = 8
    assert pair.a.read_ipc(pair.to_b, *of(here), info)
    assert (here == 8).all()
    ok, infos = pair.b.advertisev_ipc(pair.to_a, [of(there)[0]], [of(there)[1]])
    assert ok
    here[:] = 6
    assert pair.a.writev_ipc(pair.to_b, [of(here)[0]], [of(here)[1]], infos)
    assert (there == 6).all()
    assert pair.a.readv_ipc(pair.to_b, [of(here)[0]], [of(here)[1]], infos)


def test_both_add_the_other_and_get_one_connection():
    a, b = p2p.Endpoint(0), p2p.Endpoint(1)
    assert a.start_passive_accept() and b.start_passive_accept()
    assert len(a.get_metadata()) == len(b.get_metadata())
    results = {}
    both = [
        threading.Thread(
            target=lambda one=one, other=other: results.update({one: one.add_remote_endpoint(other)})
        )
        for one, other in ((a, b.get_metadata()), (b, a.get_metadata()))
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert results[a][0] and results[b][0], (a.last_error, b.last_error)
    source, target = np.arange(10), np.zeros(10, int)
    ok, tid = b.recv_async(results[b][1], *registered(b, target))
    assert ok
    assert a.send(results[a][1], *registered(a, source))
    while not b.poll_async(tid)[1]:
        pass
    np.testing.assert_array_equal(source, target)
    assert a.add_remote_endpoint(b.get_metadata()) == results[a]
    assert a.conn_id_of_rank(1) == results[a][1] and a.conn_id_of_rank(77) == -1
    assert a.remove_remote_endpoint(results[a][1])
    assert not a.remove_remote_endpoint(results[a][1])


def test_endpoints_of_this_host_find_each_other_by_their_gpu():
    a, b = p2p.Endpoint(40), p2p.Endpoint(41)
    ok, conn = a.connect_local(41)
    assert ok, a.last_error
    ok, gpu, back = b.accept_local()
    assert (ok, gpu) == (True, 40)
    source, target = np.arange(10), np.zeros(10, int)
    ok, _ = b.recv_async(back, *registered(b, target))
    assert ok
    assert a.send(conn, *registered(a, source))
    ok, _ = a.connect_local("0000:99:00.0")
    assert not ok and "none of the" in a.last_error
    del b
    ok, _ = a.connect_local(41)
    assert not ok


# --- What goes wrong is False, with a reason.


def test_errors_say_what_was_wrong(pair):
    array = np.zeros(100, np.uint8)
    mr, pointer, size = registered(pair.a, array)
    assert not pair.a.send(pair.to_b, mr, pointer, size + 1)
    assert "do not lie in memory" in pair.a.last_error
    assert not pair.a.send(99, mr, pointer, size)
    assert pair.a.last_error == "there is no connection 99"
    assert pair.a.send_async(99, mr, pointer, size) == (False, 0)
    assert not pair.a.dereg(12345)
    assert pair.a.poll_async(12345) == (False, True)
    assert not pair.a.write(pair.to_b, mr, pointer, size, b"x" * 64)
    assert "advertised memory" in pair.a.last_error
    assert pair.a.reg(0, 0)[0] is False
    with pytest.raises(InvalidArgument, match="512 bytes"):
        p2p.Endpoint.parse_metadata(b"short")
    with pytest.raises(InvalidArgument):
        pair.a.deserialize_descs(b"short")


def test_nobody_there(monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_CONNECT_TIMEOUT", "0.5")
    endpoint = p2p.Endpoint(0)
    assert endpoint.connect("127.0.0.1", "cpu", 1) == (False, 0)
    assert endpoint.last_error


def test_another_job_token_is_refused(monkeypatch):
    a = p2p.Endpoint(0)
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "another-secret-of-some-length")
    monkeypatch.setenv("WEIGHTCAST_BIND", "127.0.0.1")
    b = p2p.Endpoint(1)
    ok, _ = a.add_remote_endpoint(b.get_metadata())
    assert not ok and "token" in a.last_error


def hold_a_recv(metadata, started):
    endpoint = p2p.Endpoint(1)
    ok, conn = endpoint.add_remote_endpoint(metadata)
    assert ok, endpoint.last_error
    array = np.zeros(8)
    ok, _ = endpoint.recv_async(conn, *registered(endpoint, array))
    assert ok
    started.put(os.getpid())
    signal.pause()


def test_a_killed_peer_ends_what_waits_for_it(spawn):
    import multiprocessing as mp

    endpoint = p2p.Endpoint(0)
    started = mp.get_context("spawn").Queue()
    spawn(hold_a_recv, endpoint.get_metadata(), started)
    pid = started.get(timeout=60)
    conn = endpoint.conn_id_of_rank(1)
    assert conn > 0
    array = np.zeros(8)
    ok, tid = endpoint.recv_async(conn, *registered(endpoint, array))
    assert ok
    os.kill(pid, signal.SIGKILL)
    done = False
    while not done:
        ok, done = endpoint.poll_async(tid)
    assert not ok
    assert "p2p 1" in endpoint.last_error


def test_ctrl_c_ends_a_recv(pair):
    array = np.zeros(8)
    mr, pointer, size = registered(pair.b, array)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pair.b.recv(pair.to_a, mr, pointer, size)
    timer.join()
    assert not pair.a.send(pair.to_b, *registered(pair.a, array))
    assert "recv has ended" in pair.a.last_error


def test_gpu_tensors_are_refused_clearly(pair):
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="only host memory"):
        pair.a.register_memory([torch.empty(4, device="meta")])
    with pytest.raises(InvalidArgument, match="not contiguous"):
        pair.a.register_memory([torch.zeros(4, 4).t()])
