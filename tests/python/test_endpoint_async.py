"""weightcast.Endpoint with asyncio."""

import asyncio
import socket
import threading

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE, SETTINGS, pattern


def test_a_hundred_transfers_are_awaited_at_once(pair):
    size, count = 64 << 10, 100
    target = np.zeros(size * count, np.uint8)
    _, remote = pair.shared(target)
    source = pair.a.register(pattern(size * count))

    async def main() -> None:
        ranges = [slice(i * size, (i + 1) * size) for i in range(count)]
        await asyncio.gather(*(pair.to_b.write(source[one], remote[one]) for one in ranges))
        assert np.array_equal(target, source.array)
        back = pair.a.allocate(size * count)
        await asyncio.gather(*(pair.to_b.read(back[one], remote[one]) for one in ranges))
        assert np.array_equal(back.array, source.array)

    asyncio.run(main())
    asyncio.run(main())  # A new loop, whose queue is its own.


def test_several_loops_in_several_threads_share_an_endpoint(pair):
    size = 4 << 20
    regions = [pair.shared(np.zeros(size, np.uint8)) for _ in range(3)]
    failures: list[BaseException] = []

    async def work(index: int) -> None:
        source = pair.a.register(pattern(size, index))
        region, remote = regions[index]
        for _ in range(10):
            region.array[:] = 0
            await pair.to_b.write(source, remote)
            assert np.array_equal(region.array, source.array)

    def run(index: int) -> None:
        try:
            asyncio.run(asyncio.wait_for(work(index), PATIENCE))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(regions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_awaited_transfer_raises_what_made_it_fail(pair):
    _, remote = pair.shared(wc.allocate(64 << 20))
    source = pair.a.allocate(64 << 20)

    async def main() -> None:
        with pytest.raises(wc.TimedOut, match="to b 1"):
            await pair.to_b.write([(source, remote)] * 100, timeout=0)
        task = asyncio.ensure_future(pair.to_b.write([(source, remote)] * 100))
        await asyncio.sleep(0)
        pair.a.close()
        with pytest.raises(wc.Cancelled, match="closed"):
            await task

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_transfer(pair):
    _, remote = pair.shared(wc.allocate(64 << 20))
    source = pair.a.allocate(64 << 20)

    async def main() -> None:
        transfer = pair.to_b.write([(source, remote)] * 100)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(transfer, 0.01)
        with pytest.raises(wc.Cancelled):
            transfer.wait(PATIENCE)
        transfer.wait_fenced(PATIENCE)

    asyncio.run(main())


def test_notices_and_connections_are_awaited(pair):
    async def main() -> None:
        with pytest.raises(wc.TimedOut, match="a 0"):
            await pair.to_a.take_notice_async(0.01)
        with pytest.raises(wc.TimedOut, match="no peer"):
            await pair.b.accept_async(0.01)
        waiting = [asyncio.ensure_future(pair.to_a.take_notice_async(PATIENCE)) for _ in range(3)]
        coming = asyncio.ensure_future(pair.b.accept_async(PATIENCE))
        await asyncio.sleep(0)
        for message in (b"1", b"2", b"3"):
            await pair.to_b.notify_async(message)
        assert sorted(await asyncio.gather(*waiting)) == [b"1", b"2", b"3"]
        async with wc.Endpoint(role="c", settings=SETTINGS) as third:
            to_b = await third.connect_async(pair.b.addresses, timeout=PATIENCE)
            from_c = await coming
            assert from_c.peer == third.identity
            lost = asyncio.ensure_future(from_c.take_notice_async(PATIENCE))
            gone = asyncio.ensure_future(to_b.take_notice_async())
            await asyncio.sleep(0)
        with pytest.raises(wc.Unavailable, match="c 0"):
            await lost
        with pytest.raises(wc.Cancelled, match="closed"):
            await gone

    asyncio.run(main())


def test_connecting_can_be_cancelled(pair):
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            await asyncio.wait_for(pair.a.connect_async(address, timeout=1000), 0.05)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    silent.close()


def test_an_awaited_notify_waits_for_the_peer(pair):
    async def main() -> None:
        async def send() -> None:
            for _ in range(50):
                await pair.to_b.notify_async(bytes(32768), PATIENCE)

        sending = asyncio.ensure_future(send())
        for _ in range(50):
            assert len(await pair.to_a.take_notice_async(PATIENCE)) == 32768
        await sending

    asyncio.run(main())
