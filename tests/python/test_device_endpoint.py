"""weightcast.Endpoint with memory of GPUs, on the fake driver."""

import asyncio
import time

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE, Pair, pattern
from gpus import GPUS, WAITS_FOR_ALL, Face, Machine, nbytes

SIZE = (3 << 20) + 4096
A_WHILE = 0.2


def transfers(transport: str) -> None:
    """Regions, slices, lists of pairs, tables of pieces; between GPUs, and with host memory at one end."""
    machine, pair = Machine(), Pair()
    for source, target in ((0, 1), (1, 1), (0, None), (None, 1)):
        sent, received = pattern(SIZE, 1), np.zeros(SIZE, np.uint8)
        mine = sent if source is None else machine.array(sent, source)
        theirs = received if target is None else machine.array(received, target)
        local = pair.a.register(mine)
        region, remote = pair.shared(theirs)
        assert local.array is mine and local.nbytes == SIZE and region.writable

        def found(array=theirs):
            return array if isinstance(array, np.ndarray) else machine.read(array)

        def blank(array=theirs):
            if isinstance(array, np.ndarray):
                array[:] = 0
            else:
                machine.write(array, np.zeros(SIZE, np.uint8))

        pair.to_b.write(local, remote).wait(PATIENCE)
        assert np.array_equal(found(), sent)
        blank()
        pair.to_b.write(local[4096:8192], remote[:4096]).wait(PATIENCE)
        assert np.array_equal(found()[:4096], sent[4096:8192]) and not found()[4096:].any()
        pair.to_b.write([(local[:100], remote[100:200]), (local[100:200], remote[:100])]).wait(PATIENCE)
        assert np.array_equal(found()[:200], np.r_[sent[100:200], sent[:100]])
        blank()
        pieces = [(at, SIZE - at - 4096, 4096) for at in range(0, SIZE, 4096)]
        pair.to_b.write(local, remote, pieces=pieces).wait(PATIENCE)
        assert np.array_equal(found().reshape(-1, 4096), sent.reshape(-1, 4096)[::-1])
        pair.to_b.read(local, remote).wait(PATIENCE)
        back = mine if source is None else machine.read(mine)
        assert np.array_equal(back.reshape(-1, 4096), pattern(SIZE, 1).reshape(-1, 4096)[::-1])

        async def read(local=local, remote=remote):
            await pair.to_b.read(local[:4096], remote[-4096:])

        asyncio.run(read())
        back = mine if source is None else machine.read(mine)
        assert np.array_equal(back[:4096], pattern(SIZE, 1)[:4096])
        region.close()
        local.close()
    pair.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_transfers(gpus, monkeypatch, transport):
    monkeypatch.setenv("WEIGHTCAST_TRANSPORT", transport)
    gpus(transfers, transport).value(2 * PATIENCE)


def by_kernel() -> None:
    machine, pair = Machine(), Pair()
    mine, theirs = machine.array(pattern(SIZE, 1)), machine.array(np.zeros(SIZE, np.uint8), 1)
    local, (_, remote) = pair.a.register(mine), pair.shared(theirs)
    pieces = [(at, at, 4096) for at in range(0, 64 * 8192, 8192)]
    pair.to_b.write(local, remote).wait(PATIENCE)  # The two GPUs are tried before it.
    before = machine.calls("cuMemcpyAsync", "cuMemcpyBatchAsync"), machine.calls("cuLaunchKernel")
    pair.to_b.write(local, remote, pieces=pieces).wait(PATIENCE)
    assert machine.calls("cuMemcpyAsync", "cuMemcpyBatchAsync") == before[0]
    assert machine.calls("cuLaunchKernel") > before[1]
    pair.close()


def test_many_small_pieces_are_copied_by_a_kernel(gpus, monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_TRANSPORT", "shm")
    gpus(by_kernel).value(2 * PATIENCE)


def streams() -> None:
    machine, pair = Machine(), Pair()
    named, foreign = machine.stream(), machine.stream()
    other = machine.array(np.zeros(4096, np.uint8))
    mine, theirs = machine.array(pattern(SIZE, 1)), machine.array(pattern(SIZE, 2), 1)
    local, (_, remote) = pair.a.register(mine), pair.shared(theirs)
    pair.to_b.write(local, remote).wait(PATIENCE)  # What is made once is there from now on.
    before = machine.calls(*WAITS_FOR_ALL)
    for given, stream in ((None, 0), (named, named), (Stream(named), named), (Named(named), named)):
        machine.write(mine, pattern(SIZE, 3))
        with machine.held(foreign):
            machine.fill(other, 1, foreign)
            with machine.held(stream):
                machine.fill(mine, 7, stream)
                transfer = pair.to_b.write(local, remote, stream=given)  # Returns all the same.
                time.sleep(A_WHILE)
                assert not transfer.ended
            transfer.wait(PATIENCE)
            assert machine.is_busy(foreign)
            assert (machine.read(theirs)[64:] == 7).all()
    # A read comes behind the kernels that still use the memory it fills.
    machine.write(theirs, pattern(SIZE, 4))
    with machine.held(named):
        machine.fill(mine, 9, named)
        with pytest.raises(wc.TimedOut, match="stream"):
            pair.to_b.read(local, remote, stream=named, timeout=A_WHILE)
    pair.to_b.read(local, remote, stream=named).wait(PATIENCE)
    assert np.array_equal(machine.read(mine), pattern(SIZE, 4))
    assert machine.calls(*WAITS_FOR_ALL) == before
    with pytest.raises(wc.InvalidArgument, match="give a CUDA stream"):
        pair.to_b.write(local, remote, stream="fast")
    machine.capture(named, True)
    with pytest.raises(wc.InvalidArgument, match="outside of the capture"):
        pair.to_b.write(local, remote, stream=named)
    machine.capture(named, False)
    pair.close()


class Stream:
    """As torch's."""

    def __init__(self, address: int) -> None:
        self.cuda_stream = address


class Named:
    """As cuda.core's."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def test_a_streams_unfinished_work_is_neither_read_nor_overtaken(gpus):
    gpus(streams).value(2 * PATIENCE)


def registrations() -> None:
    machine, pair = Machine(), Pair()
    array = machine.array(np.zeros((8, 1024), np.float32))
    assert pair.a.register(array).nbytes == nbytes(array) == 32768
    assert pair.a.register(Face(array, (4, 1024), offset=4096)).nbytes == 16384
    assert pair.a.register(Face(array, (8, 1024), strides=(4096, 4))).nbytes == 32768
    read_only = Face(array, data=(array.__cuda_array_interface__["data"][0], True))
    assert not pair.a.register(read_only).writable
    with pytest.raises(wc.InvalidArgument, match="read-only"):
        pair.a.register(read_only, access="readwrite")
    with pytest.raises(wc.InvalidArgument, match="not contiguous"):
        pair.a.register(Face(array, (8, 512), strides=(4096, 4)))
    with pytest.raises(wc.InvalidArgument, match="mask"):
        pair.a.register(Face(array, mask=array))
    with pytest.raises(wc.InvalidArgument, match="beyond the end of their allocation"):
        pair.a.register(Face(array, (64, 1 << 20)))
    with pytest.raises(wc.InvalidArgument, match="device is 'moon'"):
        wc.allocate(4, device="moon")
    with pytest.raises(wc.Error):
        wc.allocate(4, device=GPUS)
    with pytest.raises(wc.InvalidArgument, match="0 bytes"):
        wc.allocate((0, 4), device=0)
    pair.close()


def test_what_is_registered_and_what_is_refused(gpus):
    gpus(registrations).value(PATIENCE)
