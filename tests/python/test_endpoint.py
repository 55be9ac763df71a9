"""weightcast.Endpoint in one process: what it takes, what it refuses and what it keeps alive."""

import array
import gc
import mmap
import socket
import threading
import weakref

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE, SETTINGS, pattern

# --- Who is who ------------------------------------------------------------------------------------


def test_both_sides_know_each_other(pair):
    assert (pair.to_b.peer.role, pair.to_b.peer.rank, str(pair.to_b.peer)) == ("b", 1, "b 1")
    assert pair.to_a.peer == pair.a.identity
    assert pair.to_b.address in pair.b.addresses
    assert pair.to_b.transport in ("shm", "tcp")
    assert pair.a.connection_map() == [f"b 1: {pair.to_b.describe()}"]
    again = pair.a.connect(pair.b.addresses, incarnation=pair.b.identity.incarnation, timeout=PATIENCE)
    assert again == pair.to_b and again != pair.to_a


def test_connecting_to_nobody_or_to_somebody_else_fails_and_says_so(pair):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(wc.Unavailable, match=nobody):
            pair.a.connect(nobody, timeout=PATIENCE)
    with pytest.raises(wc.Unavailable, match="expected c 0 but b 1"):
        pair.a.connect(pair.b.addresses, role="c", timeout=PATIENCE)
    with pytest.raises(wc.InvalidArgument):
        pair.a.connect("no port", timeout=PATIENCE)


def test_options_that_are_wrong_are_refused():
    with pytest.raises(wc.InvalidArgument, match="leese"):
        wc.Endpoint(settings={"leese": 1})
    with pytest.raises(wc.Permission, match="no job token"):
        wc.Endpoint(token="")
    with wc.Endpoint(token="", settings=SETTINGS) as endpoint:
        assert endpoint.addresses[0].startswith("127.0.0.1:")


# --- Memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros(4096, np.uint8),
        np.zeros((16, 64), np.float32, order="F"),
        bytearray(4096),
        memoryview(bytearray(8192))[4096:],
        array.array("d", bytes(4096)),
        mmap.mmap(-1, 4096),
        wc.allocate(4096),
    ],
    ids=["numpy", "fortran", "bytearray", "memoryview", "array", "mmap", "allocated"],
)
def test_writes_into_and_reads_from_any_buffer(pair, memory):
    region, remote = pair.shared(memory)
    assert len(region) == len(remote) == 4096
    source = pair.a.register(pattern(4096))
    pair.to_b.write(source, remote).wait(PATIENCE)
    assert region.array.tobytes(order="A") == source.array.tobytes()
    back = pair.a.allocate(4096)
    pair.to_b.read(back, remote).wait(PATIENCE)
    assert np.array_equal(back.array, source.array)


def test_torch_tensors_of_a_dtype_that_numpy_has_not(pair):
    torch = pytest.importorskip("torch")
    target = torch.zeros(64, 32, dtype=torch.bfloat16)
    region, remote = pair.shared(target)
    assert len(region) == target.numel() * 2 and region.array.data_ptr() == target.data_ptr()
    source = torch.randn(64, 32).to(torch.bfloat16)
    pair.to_b.write(pair.a.register(source), remote).wait(PATIENCE)
    assert torch.equal(target, source)
    for wrong, why in (
        (source.T, "not contiguous"),
        (source.to_sparse(), "dense"),
        (torch.zeros(4, device="meta"), "meta"),
    ):
        with pytest.raises(wc.InvalidArgument, match=why):
            pair.a.register(wrong)


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (np.zeros((8, 8))[:, ::2], "not contiguous"),
        (memoryview(bytearray(8))[::2], "contiguous"),
        (np.array([object()]), "Python objects"),
        (np.zeros(0), "0 bytes"),
        ([1, 2, 3], "memory is a list, which has no memory"),
        ("text", "memory is a str, which has no memory"),
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused(pair, memory, why):
    with pytest.raises(wc.InvalidArgument, match=why):
        pair.a.register(memory)


def test_read_only_memory_is_a_source_only(pair):
    frozen = pattern(4096)
    frozen.flags.writeable = False
    for memory in (frozen, frozen.tobytes(), memoryview(bytearray(frozen)).toreadonly()):
        with pytest.raises(wc.InvalidArgument, match="read-only"):
            pair.b.register(memory, access="readwrite")
        region, remote = pair.shared(memory)
        assert not region.writable
        mine = pair.a.allocate(4096)
        pair.to_b.read(mine, remote).wait(PATIENCE)
        assert np.array_equal(mine.array, frozen)
        with pytest.raises(wc.Permission, match="not open to writes"):
            pair.to_b.write(mine, remote)
        with pytest.raises(wc.InvalidArgument, match="read-only"):
            pair.to_a.read(region, pair.to_a.import_region(mine.descriptor))


def test_access_is_what_was_granted(pair):
    local = pair.b.register(np.zeros(64, np.uint8), access="local")
    mine = pair.a.allocate(64)
    closed = pair.to_b.import_region(local.descriptor)
    for begin in (pair.to_b.write, pair.to_b.read):
        with pytest.raises(wc.Permission):
            begin(mine, closed)
    with pytest.raises(wc.InvalidArgument, match="readwrite, read, local"):
        pair.b.register(np.zeros(64), access="all")


def test_slices_are_of_bytes_and_never_beyond_the_ends(pair):
    target = np.zeros(4096, np.uint8)
    region, remote = pair.shared(target)
    source = pair.a.register(pattern(4096))
    assert [len(one) for one in (region[:], region[96:], region[-96:], region[10:20][2:5])] == [
        4096,
        4000,
        96,
        3,
    ]
    pair.to_b.write(source[-96:], remote[0:96]).wait(PATIENCE)
    pair.to_b.write(source[10:20][2:5], remote[200:300][1:4]).wait(PATIENCE)
    assert np.array_equal(target[:96], source.array[-96:])
    assert np.array_equal(target[201:204], source.array[12:15])
    assert not target[96:201].any() and not target[204:].any()
    for wrong in (slice(0, 4097), slice(-4097, None), slice(20, 10), slice(5000, 5000)):
        for whole in (region, remote, region[:]):
            with pytest.raises(wc.OutOfBounds, match="not inside a region of 4096 bytes"):
                whole[wrong]
    with pytest.raises(wc.InvalidArgument, match="no step"):
        region[::2]
    with pytest.raises(wc.InvalidArgument, match="equal length"):
        pair.to_b.write(source[0:10], remote[0:11])


def test_what_stands_for_no_memory_is_refused(pair):
    _, remote = pair.shared(np.zeros(64, np.uint8))
    mine = pair.a.allocate(64)
    for wrong in ((remote, mine), (mine.array, remote), (mine, mine), (None, remote)):
        with pytest.raises(wc.InvalidArgument, match="side is a"):
            pair.to_b.write(*wrong)
    for wrong in (7, [mine], [(mine,)], [(mine, remote, 1)]):
        with pytest.raises(wc.InvalidArgument, match="pair"):
            pair.to_b.write(wrong)
    with pytest.raises(wc.InvalidArgument, match="another connection"):
        pair.to_a.write(pair.b.register(np.zeros(64, np.uint8)), remote)
    with pytest.raises(wc.ProtocolError):
        pair.to_b.import_region(b"nonsense")


# --- Transfers -------------------------------------------------------------------------------------


def test_vectored_by_pairs_and_by_a_table(pair):
    size, count = 64, 1000
    target = np.zeros(size * count, np.uint8)
    _, remote = pair.shared(target)
    source = pair.a.register(pattern(size * count))
    order = np.random.default_rng(1).permutation(count) * size
    pairs = [(source[i * size : (i + 1) * size], remote[at : at + size]) for i, at in enumerate(order)]
    transfer = pair.to_b.write(pairs)
    assert transfer.nbytes == size * count
    transfer.wait(PATIENCE)
    expected = np.zeros_like(target).reshape(count, size)
    expected[order // size] = source.array.reshape(count, size)
    assert np.array_equal(target, expected.ravel())

    back = pair.a.allocate(size * count)
    table = np.stack([np.arange(count) * size, order, np.full(count, size)], axis=1)
    pair.to_b.read(back, remote, pieces=table).wait(PATIENCE)
    assert np.array_equal(back.array, source.array)
    pair.to_b.write([]).wait(PATIENCE)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ([[0, 0, 65]], wc.OutOfBounds),
        ([[60, 0, 5]], wc.OutOfBounds),
        ([[0, 60, 5]], wc.OutOfBounds),
        ([[-1, 0, 1]], wc.OutOfBounds),
        ([[0, 0, -1]], wc.OutOfBounds),
        ([0, 0, 1], wc.InvalidArgument),
        ([[0.0, 0.0, 1.0]], wc.InvalidArgument),
    ],
)
def test_a_table_stays_inside_its_slices(pair, table, error):
    _, remote = pair.shared(np.zeros(128, np.uint8))
    mine = pair.a.allocate(128)
    with pytest.raises(error):
        pair.to_b.write(mine[:64], remote[:64], pieces=np.array(table))


def test_a_transfer_has_a_time_limit_of_its_own(pair):
    target = wc.allocate(64 << 20)
    _, remote = pair.shared(target)
    source = pair.a.allocate(64 << 20)
    transfer = pair.to_b.write([(source, remote)] * 100, timeout=0)
    with pytest.raises(wc.TimedOut, match="to b 1"):
        transfer.wait(PATIENCE)
    transfer.wait_fenced(PATIENCE)
    assert transfer.ended and transfer.fenced


def test_cancelling_ends_at_once_and_fences_soon(pair):
    target = wc.allocate(64 << 20)
    _, remote = pair.shared(target)
    source = pair.a.allocate(64 << 20)
    transfer = pair.to_b.write([(source, remote)] * 100)
    transfer.cancel()
    with pytest.raises(wc.Cancelled):
        transfer.wait(PATIENCE)
    transfer.wait_fenced(PATIENCE)
    target[:] = 7
    source.array[:] = 9
    pair.to_b.notify(b"after")  # Whatever was under way would have come before.
    assert pair.to_a.take_notice(PATIENCE) == b"after"
    assert (target == 7).all()


def test_dropped_handles_keep_their_memory_until_it_is_free(pair):
    size = 8 << 20
    target = np.zeros(size, np.uint8)
    region, remote = pair.shared(target)
    source = pattern(size)
    expected, alive = source.copy(), weakref.ref(source)
    pair.to_b.write(pair.a.register(source), remote)
    del source
    look = pair.a.allocate(size)
    for _ in range(10_000):
        pair.to_b.read(look, remote).wait(PATIENCE)
        if np.array_equal(look.array, expected):
            break
    assert np.array_equal(target, expected), "the write went on without its handles"
    gc.collect()
    for _ in range(10_000):
        if alive() is None:
            break
        pair.to_b.read(look[:1], remote[:1]).wait(PATIENCE)  # Any call lets go of what is over.
    assert alive() is None and pair.a._core.kept == 0


def test_a_closed_region_is_nobodys(pair):
    memory = bytearray(4096)
    with pair.b.register(memory) as region:
        remote = pair.to_b.import_region(region.descriptor)
        kept = region[:10]
        with pytest.raises(BufferError):
            memory.extend(b"more")
        assert not region.closed
    assert region.closed
    region.close()
    del kept
    gc.collect()
    memory.extend(b"more")
    for use in (lambda: region.descriptor, lambda: region.array, lambda: pair.to_a.write(region, remote)):
        with pytest.raises(wc.InvalidArgument, match="closed|another connection"):
            use()
    with pytest.raises(wc.Error, match="b 1"):
        pair.to_b.write(pair.a.allocate(4096), remote).wait(PATIENCE)


def test_closing_a_region_ends_its_transfers(pair):
    _, remote = pair.shared(wc.allocate(64 << 20))
    source = pair.a.allocate(64 << 20)
    transfer = pair.to_b.write([(source, remote)] * 100)
    source.close(PATIENCE)
    with pytest.raises(wc.Cancelled, match="closed the local region"):
        transfer.wait(PATIENCE)
    assert transfer.fenced
    with pytest.raises(wc.InvalidArgument, match="local region was closed"):
        pair.to_b.write(source, remote)


# --- Notices ---------------------------------------------------------------------------------------


def test_notices_arrive_in_order_and_whole(pair):
    sent = [b"", b"one", bytes(range(256)) * 128, bytearray(b"two"), memoryview(b"three")]
    for message in sent:
        pair.to_b.notify(message, PATIENCE)
    assert [pair.to_a.take_notice(PATIENCE) for _ in sent] == [bytes(message) for message in sent]
    with pytest.raises(wc.TimedOut, match="a 0"):
        pair.to_a.take_notice(0.01)
    with pytest.raises(wc.InvalidArgument, match="32768"):
        pair.to_b.notify(bytes(32769))
    with pytest.raises(TypeError):
        pair.to_b.notify("text")


def test_a_peer_that_takes_nothing_holds_the_sender_back(pair):
    with pytest.raises(wc.TimedOut, match="b 1 .* has not taken"):
        while True:
            pair.to_b.notify(bytes(32768), 0)
    blocked = threading.Thread(target=pair.to_b.notify, args=(b"last", PATIENCE))
    blocked.start()
    while (notice := pair.to_a.take_notice(PATIENCE)) != b"last":
        assert notice == bytes(32768)
    blocked.join(PATIENCE)
    assert not blocked.is_alive()


def test_the_end_of_a_connection_says_why(pair):
    pair.to_b.notify(b"last words")
    assert pair.to_a.take_notice(PATIENCE) == b"last words"
    pair.to_b.close()
    with pytest.raises(wc.Unavailable, match="a 0 .* ended the connection"):
        pair.to_a.take_notice(PATIENCE)
    assert not pair.to_a.usable
    with pytest.raises(wc.Unavailable):
        pair.to_a.check()


# --- Ends ------------------------------------------------------------------------------------------


def test_closing_ends_calls_that_wait_on_other_threads(pair):
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    waits = {
        "accept": pair.a.accept,
        "take_notice": pair.to_b.take_notice,
        "connect": lambda: pair.a.connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout=PATIENCE),
    }
    ends: dict[str, str] = {}
    begun = threading.Barrier(len(waits) + 1)

    def run(name: str) -> None:
        begun.wait()
        try:
            waits[name]()
        except wc.Cancelled:
            ends[name] = "cancelled"

    threads = [threading.Thread(target=run, args=(name,)) for name in waits]
    for thread in threads:
        thread.start()
    begun.wait()
    pair.a.close()
    for thread in threads:
        thread.join(PATIENCE)
    silent.close()
    assert ends == dict.fromkeys(waits, "cancelled")


def test_everything_fails_after_the_end_and_says_so(pair):
    region, remote = pair.shared(np.zeros(64, np.uint8))
    mine = pair.a.allocate(64)
    pair.a.close()
    pair.a.close()
    for use in (
        lambda: pair.a.register(np.zeros(4)),
        lambda: pair.a.accept(1),
        lambda: pair.a.connect(pair.b.addresses),
        lambda: pair.to_b.write(mine, remote),
        lambda: pair.to_b.notify(b"hello"),
        lambda: pair.to_b.take_notice(1),
        lambda: pair.a.addresses,
    ):
        with pytest.raises(wc.Cancelled, match="closed"):
            use()
    mine.close()
    assert not region.closed
