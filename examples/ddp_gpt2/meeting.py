"""How the ranks find each other: by a store at rank 0. Here errors are told better than by gloo."""

import contextlib
import os
import socket
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from failure import Failure, first_line, lost_ranks
from place import Place
from traffic import Interface

CONNECT = 5.0  # Seconds.


def meet(place: Place, interface: Interface, timeout: float) -> dist.Store:
    """Returns once every rank has come, and any two of them can connect."""
    deadline = time.monotonic() + timeout
    store = _store(place, deadline)
    with lost_ranks("while the ranks met"):
        try:
            _come(place, store, deadline)
            _try_connections(place, store, interface)
        except Failure:
            _leave(place, store)
            raise
    return dist.PrefixStore("gloo", store)


def _store(place: Place, deadline: float) -> dist.Store:
    """Rank 0 listens at MASTER_ADDR:MASTER_PORT; under torchrun its agent does."""
    listens = place.rank == 0 and not place.torchrun
    if listens:
        _check_own_address(place.master)
    else:
        _wait_for_listener(place, deadline)
    try:
        store = dist.TCPStore(
            place.master,
            place.port,
            is_master=listens,
            timeout=timedelta(seconds=max(deadline - time.monotonic(), 1)),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        if "EADDRINUSE" in str(error):
            raise Failure(
                f"port {place.port} is in use on this host: end the run before, or set another MASTER_PORT"
                " on all ranks"
            ) from None
        raise Failure(
            f"{place.master}:{place.port} does not answer as rank 0 does ({first_line(error)}): check"
            " MASTER_ADDR and MASTER_PORT, and that rank 0 runs the same version of torch"
        ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"ddp_gpt2/{attempt}", store)


def _check_own_address(master: str) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError as error:
        raise Failure(
            f"MASTER_ADDR={master} is not an address of this host, where rank 0 runs ({error.strerror}):"
            " set it to one of `ip -brief address`, on all ranks"
        ) from None


def _wait_for_listener(place: Place, deadline: float) -> None:
    told = False
    while True:
        try:
            socket.create_connection((place.master, place.port), timeout=2).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failure(
                f"rank 0 is not reachable at {place.master}:{place.port} ({reason}): start rank 0 there,"
                " check MASTER_ADDR and MASTER_PORT, and open the port in the firewall"
            )
        if not told:
            print(f"waiting for rank 0 at {place.master}:{place.port}, {left:.0f} s at most", file=sys.stderr)
            told = True
        time.sleep(min(0.2, left))


def _come(place: Place, store: dist.Store, deadline: float) -> None:
    """Every rank is there once, and has been told the same WORLD_SIZE."""
    if store.add(f"started {place.rank}", 1) > 1:
        raise Failure(f"RANK={place.rank} was started twice: give each process a RANK of its own")
    store.set(f"size {place.rank}", str(place.world_size))
    sizes = _sizes(place, store, deadline)
    wrong = {rank: size for rank, size in sizes.items() if size != place.world_size}
    if wrong:
        told = ", ".join(f"rank {rank} has {size}" for rank, size in wrong.items())
        raise Failure(
            f"WORLD_SIZE={place.world_size} here, but {told}: set the same number of ranks everywhere"
        )


def _sizes(place: Place, store: dist.Store, deadline: float) -> dict[int, int]:
    """What rank 0 was told; at rank 0, what all were told."""
    asked = range(place.world_size) if place.rank == 0 else [0]
    sizes: dict[int, int] = {}
    for rank in asked:
        try:
            store.wait([f"size {rank}"], timedelta(seconds=max(deadline - time.monotonic(), 0.1)))
        except dist.DistStoreError:
            raise Failure(
                f"rank {rank} of {place.world_size} has not come to {place.master}:{place.port}: start it, or"
                " set WORLD_SIZE to the number of ranks that you start"
            ) from None
        sizes[rank] = int(store.get(f"size {rank}"))
        if sizes[rank] != place.world_size:
            break
    return sizes


def _try_connections(place: Place, store: dist.Store, interface: Interface) -> None:
    """Between any two ranks, to ports that the system chooses, as gloo does; it would say less."""
    family = socket.AF_INET6 if ":" in interface.address else socket.AF_INET
    everyone = range(place.world_size)
    with socket.create_server((interface.address, 0), family=family, backlog=place.world_size) as listener:
        store.set(f"listener {place.rank}", f"{interface.address} {listener.getsockname()[1]}")
        failure = ""
        for other in everyone:
            if other != place.rank and not failure:
                failure = _try_connection(other, store.get(f"listener {other}").decode(), interface)
        store.set(f"tried {place.rank}", failure)
        failures = [store.get(f"tried {rank}").decode() for rank in everyone]
    for rank, failure in enumerate(failures):
        if failure:
            raise Failure(f"rank {rank} cannot connect to {failure}")


def _try_connection(rank: int, listener: str, interface: Interface) -> str:
    """What is wrong, or nothing."""
    host, port = listener.split()
    try:
        socket.create_connection((host, int(port)), CONNECT, (interface.address, 0)).close()
    except OSError as error:
        return (
            f"rank {rank} at {host} over {interface.name} ({error.strerror or error}): open all TCP ports"
            " between the hosts, or name another interface in GLOO_SOCKET_IFNAME"
        )
    return ""


def _leave(place: Place, store: dist.Store) -> None:
    """The store is rank 0's, which lets the others read why all end."""
    with contextlib.suppress(RuntimeError):
        store.set(f"left {place.rank}", "")
        if place.rank == 0:
            others = [rank for rank in range(1, place.world_size) if store.check([f"size {rank}"])]
            store.wait([f"left {rank}" for rank in others], timedelta(seconds=CONNECT))
