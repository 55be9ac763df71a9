"""weightcast.p2p: what the calls of the UCCL P2P engine do (test_p2p_signatures.py: what they are called)."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

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


def test_advertise_needs_no_connection(pair):
    """As on the main branch; release 0.1.1 puts the connection in front, and refuses an unknown one."""
    array = np.zeros(100, np.uint8)
    mr_id, ptr, size = registered(pair.b, array)
    ok, meta = pair.b.advertise(mr_id, ptr, size)
    assert ok and len(meta) == 64
    assert pair.b.advertise(pair.to_a, mr_id, ptr, size) == (True, meta)
    assert pair.b.advertise(size=size, ptr=ptr, mr_id=mr_id) == (True, meta)
    assert pair.b.advertise(conn_id=pair.to_a, mr_id=mr_id, ptr=ptr, size=size) == (True, meta)
    assert pair.b.advertisev([mr_id], [ptr], [size], 1) == (True, [meta])
    assert pair.b.advertisev(pair.to_a, [mr_id], [ptr], [size], num_iovs=1) == (True, [meta])
    assert pair.b.advertise(99, mr_id, ptr, size) == (False, b"")
    assert "no connection 99" in pair.b.last_error


def finish(endpoint, ok, transfer_id):
    assert ok, endpoint.last_error
    done = False
    while not done:
        ok, done = endpoint.poll_async(transfer_id)
    return ok


def test_a_recv_may_be_larger_than_its_send(pair):
    """The bytes come to the front. A size beyond the registered memory means up to its end."""
    source, target = np.arange(1, 101, dtype=np.uint8), np.zeros(200, np.uint8)
    mr_id, ptr, size = registered(pair.b, target)
    for asked in (size, 2 * size):
        target[:] = 0
        begun = pair.b.recv_async(pair.to_a, mr_id, ptr, asked)
        assert pair.a.send(pair.to_b, *registered(pair.a, source))
        assert finish(pair.b, *begun)
        np.testing.assert_array_equal(target[:100], source)
        assert not target[100:].any()


def test_each_piece_goes_to_the_front_of_its_own(pair):
    source, target = np.arange(1, 31, dtype=np.uint8), np.zeros(60, np.uint8)
    here, there = registered(pair.a, source)[0], registered(pair.b, target)[0]
    at = target.ctypes.data
    begun = pair.b.recvv_async(pair.to_a, [there, there], [at, at + 30], [30, 30], 2)
    at = source.ctypes.data
    assert pair.a.sendv(pair.to_b, [here, here], [at, at + 10], [10, 20], 2)
    assert finish(pair.b, *begun)
    np.testing.assert_array_equal(target[:10], source[:10])
    np.testing.assert_array_equal(target[30:50], source[10:])
    assert not target[10:30].any() and not target[50:].any()


def test_a_send_larger_than_its_recv_fails_at_both_ends(pair):
    source, target = np.zeros(100, np.uint8), np.zeros(99, np.uint8)
    begun = pair.b.recv_async(pair.to_a, *registered(pair.b, target))
    assert not pair.a.send(pair.to_b, *registered(pair.a, source))
    assert "a send of 100 bytes meets a recv of 99" in pair.a.last_error
    assert not finish(pair.b, *begun)
    assert "a send of 100 bytes meets a recv of 99" in pair.b.last_error


def test_poll_loops_end_many_transfers(pair):
    """Round and round over what has not ended."""
    source, target = np.arange(640, dtype=np.uint8), np.zeros(640, np.uint8)
    here, at, _ = registered(pair.a, source)
    there, to, _ = registered(pair.b, target)
    open_ends = []
    for part in range(0, 640, 10):
        ok, transfer_id = pair.b.recv_async(pair.to_a, there, to + part, 10)
        open_ends.append((pair.b, transfer_id))
        assert ok
        ok, transfer_id = pair.a.send_async(pair.to_b, here, at + part, 10)
        open_ends.append((pair.a, transfer_id))
        assert ok
    while open_ends:
        polled = [(one, one[0].poll_async(one[1])) for one in open_ends]
        assert all(ok for _, (ok, _) in polled)
        open_ends = [one for one, (_, done) in polled if not done]
    np.testing.assert_array_equal(target, source)


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
    assert a.conn_id_of_rank(1) == results[a][1] and a.conn_id_of_rank(77) == 2**64 - 1
    assert a.remove_remote_endpoint(results[a][1])
    assert not a.remove_remote_endpoint(results[a][1])


def test_endpoints_of_this_host_find_each_other_by_their_gpu(monkeypatch):
    a, b = p2p.Endpoint(40), p2p.Endpoint(41)
    ok, conn = a.connect_local(41)
    assert ok, a.last_error
    ok, gpu, back = b.accept_local()
    assert (ok, gpu) == (True, 40)
    source, target = np.arange(10), np.zeros(10, int)
    ok, _ = b.recv_async(back, *registered(b, target))
    assert ok
    assert a.send(conn, *registered(a, source))
    for named in ({"remote_gpu_bdf": "41"}, {"remote_gpu_idx": 41}, {"remote_gpu_idx": "41"}):
        ok, _ = a.connect_local(**named)
        assert ok, a.last_error
    assert [b.accept_local()[:2] for _ in range(3)] == [(True, "cpu"), (True, 40), (True, "cpu")]
    del b
    monkeypatch.setenv("WEIGHTCAST_CONNECT_TIMEOUT", "0.2")
    alone = p2p.Endpoint(43)
    for gpu in ("0000:99:00.0", 41):
        assert alone.connect_local(gpu) == (False, 0)
        assert "no other endpoint" in alone.last_error


def test_the_gpu_is_the_one_that_cuda_shows(monkeypatch, tmp_path):
    addresses = ["0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"]
    for number, address in enumerate(addresses):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: \t X\nGPU UUID: \t GPU-{number}\n")
    monkeypatch.setattr(p2p, "_GPUS", tmp_path)

    def gpu_of(index, visible):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return p2p.Endpoint.parse_metadata(p2p.Endpoint(index).get_metadata())[2]

    assert gpu_of(0, "1") == addresses[1]
    assert gpu_of(1, "2,0") == addresses[0]
    assert gpu_of(0, "GPU-2") == addresses[2]
    assert [gpu_of(index, "0,-1,2") for index in (0, 1)] == [addresses[0], "cpu"]
    assert gpu_of(0, "") == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert p2p.Endpoint.parse_metadata(p2p.Endpoint(2).get_metadata())[2] == addresses[2]


def test_connect_local_waits_for_the_endpoint():
    a = p2p.Endpoint(44)
    results = []
    thread = threading.Thread(target=lambda: results.append(a.connect_local(remote_gpu_idx=45)))
    thread.start()
    b = p2p.Endpoint(45)
    thread.join()
    assert results[0][0], a.last_error
    assert b.accept_local()[:2] == (True, 44)


# --- What goes wrong is False, with a reason.


def test_errors_say_what_was_wrong(pair):
    array = np.zeros(100, np.uint8)
    mr, pointer, size = registered(pair.a, array)
    assert not pair.a.send(pair.to_b, mr, pointer, size + 1)
    assert "do not lie in memory" in pair.a.last_error
    assert not pair.a.send(99, mr, pointer, size)
    assert pair.a.last_error.startswith("there is no connection 99, or it was removed;")
    assert pair.a.send_async(99, mr, pointer, size) == (False, 0)
    assert not pair.a.dereg(12345)
    assert pair.a.poll_async(12345) == (False, True)
    assert not pair.a.write(pair.to_b, mr, pointer, size, b"x" * 64)
    assert "advertised memory" in pair.a.last_error
    assert pair.a.reg(0, 0)[0] is False
    assert pair.a.recv_async(pair.to_b, mr, pointer + size, 1) == (False, 0)
    with pytest.raises(InvalidArgument, match="512 bytes"):
        p2p.Endpoint.parse_metadata(b"short")
    with pytest.raises(InvalidArgument):
        pair.a.deserialize_descs(b"short")


def test_misuse_raises_as_there(pair):
    """RuntimeError, where the other engine's bindings raise it."""
    array, other = np.zeros(100, np.uint8), np.zeros(100, np.uint8)
    mr, pointer, size = registered(pair.a, array)
    descs = pair.a.register_memory([array])
    ok, meta = pair.b.advertise(*registered(pair.b, other))
    assert ok
    for wrong, call in (
        ("exactly 64 bytes", lambda: pair.a.write(pair.to_b, mr, pointer, size, meta[1:])),
        (
            "for 2 pieces; give 2 of each",
            lambda: pair.a.writev(pair.to_b, [mr], [pointer], [size], [meta], 2),
        ),
        ("2 metas", lambda: pair.a.readv_async(pair.to_b, [mr], [pointer], [size], [meta, meta], 1)),
        ("2 addresses and 1 sizes; give one size", lambda: pair.a.regv([pointer, pointer], [size])),
        ("Invalid op_name", lambda: pair.a.transfer(pair.to_b, "swap", descs, descs)),
        (
            "1 local, 0 remote descriptors; give equally many",
            lambda: pair.a.transfer(pair.to_b, "read", descs, []),
        ),
        (
            "tensor 0 of the list is a bytes; give a torch tensor",
            lambda: pair.a.register_memory([b"bytes"]),
        ),
    ):
        with pytest.raises(RuntimeError, match=wrong):
            call()


def test_a_removed_connection(pair):
    """transfer raises, all else returns False."""
    array, other = np.zeros(100, np.uint8), np.zeros(100, np.uint8)
    descs = pair.a.register_memory([array])
    remote = pair.b.register_memory([other])
    assert pair.a.remove_remote_endpoint(pair.to_b)
    with pytest.raises(RuntimeError, match="Invalid conn_id"):
        pair.a.transfer(pair.to_b, "write", descs, remote)
    assert pair.a.send_async(pair.to_b, descs[0].mr_id, *of(array)) == (False, 0)
    assert pair.a.advertise(pair.to_b, descs[0].mr_id, *of(array)) == (False, b"")
    assert not pair.a.remove_remote_endpoint(pair.to_b)


def test_a_transfer_is_as_long_as_its_local_descriptor(pair):
    source, target = np.full(40, 7, np.uint8), np.zeros(100, np.uint8)
    descs = pair.a.register_memory([source])
    remote = pair.a.deserialize_descs(pair.b.get_serialized_descs(pair.b.register_memory([target])))
    assert finish(pair.a, *pair.a.transfer(pair.to_b, "write", descs, remote))
    assert (target[:40] == 7).all() and not target[40:].any()


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
    while (conn := endpoint.conn_id_of_rank(1)) == 2**64 - 1:
        time.sleep(0.01)
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
    assert "the recv of " in pair.a.last_error


def test_tensors_that_have_no_place_are_refused_clearly(pair):
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="move it to the CPU or a CUDA device"):
        pair.a.register_memory([torch.empty(4, device="meta")])
    with pytest.raises(InvalidArgument, match="not contiguous"):
        pair.a.register_memory([torch.zeros(4, 4).t()])
