"""The data plane alone: one process computes key/value blocks, another fetches those it needs, with asyncio.

python examples/key_value_blocks.py
"""

import asyncio
import multiprocessing as mp

import numpy as np

import weightcast as wc

BLOCKS, BLOCK = 256, 16 * 1024  # float16 values


def block(number: int) -> np.ndarray:
    """Stands in for what a prefill computes."""
    return np.random.default_rng(number).standard_normal(BLOCK).astype(np.float16)


def prefill(addresses: list[str]) -> None:
    with wc.Endpoint(role="prefill") as endpoint:
        cache = endpoint.allocate((BLOCKS, BLOCK), np.float16, access="read")
        for number in range(BLOCKS):
            cache.array[number] = block(number)
        decoder = endpoint.connect(addresses, role="decode", timeout=30)
        decoder.notify(cache.descriptor)
        assert decoder.take_notice(60) == b"done"


async def decode(endpoint: wc.Endpoint) -> int:
    source = await endpoint.accept_async(timeout=30)
    remote = source.import_region(await source.take_notice_async(timeout=30))
    wanted = np.random.default_rng(0).permutation(BLOCKS)[:64]
    blocks = endpoint.allocate((len(wanted), BLOCK), np.float16)
    size = blocks.array[0].nbytes

    async def fetch(place: int, number: int) -> None:
        await source.read(
            blocks[place * size : (place + 1) * size], remote[number * size : (number + 1) * size]
        )

    await asyncio.gather(*(fetch(place, int(number)) for place, number in enumerate(wanted)))
    print(f"{len(wanted)} blocks from {source.peer}, over {source.describe()}")
    await source.notify_async(b"done")
    return sum(np.array_equal(blocks.array[place], block(int(number))) for place, number in enumerate(wanted))


def main() -> None:
    mp.set_start_method("spawn")
    with wc.Endpoint(role="decode") as endpoint:
        other = mp.Process(target=prefill, args=(endpoint.addresses,), daemon=True)
        other.start()
        right = asyncio.run(decode(endpoint))
        other.join(60)
    if other.exitcode != 0:
        raise SystemExit("the other process failed")
    print(f"bit-exact: {right} blocks")


if __name__ == "__main__":
    main()
