"""UCX by Debian's ucx_perftest, which keeps several writes in flight, always of the same bytes."""

import contextlib
import os
import pathlib
import socket
import subprocess

from .install import library_path, unpack_debian

WRITES_A_SECOND_BYTES = 5e9  # To choose how many writes take about a time.
WAIT_SECONDS = 120
HUGE_PAGE = 2 << 20
MOST_TCP = 64 << 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def parse_size(text: str) -> int:
    return int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)


class Peer:
    name = "ucx_perftest"
    paths = ("tcp", "any", "huge", "mapped")
    reuse = True

    def __init__(self, folder: pathlib.Path) -> None:
        root = unpack_debian(folder / "ucx", ["ucx-utils", "libucx0"])
        self.program = root / "usr" / "bin" / "ucx_perftest"
        libraries = library_path(root)
        modules = next(pathlib.Path(part) / "ucx" for part in libraries.split(":"))
        self.environment = {"LD_LIBRARY_PATH": libraries, "UCX_MODULE_DIR": str(modules)}

    def _options(self, path: str, size: int, seconds: float) -> tuple[list[str], dict[str, str]]:
        count = max(5, min(100_000, int(seconds * WRITES_A_SECOND_BYTES / max(size, 20_000))))
        options = ["-s", str(size), "-n", str(count), "-w", str(max(2, count // 10)), "-f", "-v"]
        kind = "put_lat" if size <= 8 else "put_bw"
        if path in ("any", "huge"):
            # The path alone: above it UCX would take memory that it maps. Left alone it takes huge pages.
            pages = {"UCX_CMA_ALLOC": "mmap" if path == "any" else "thp"}
            return [*options, "-t", "put_bw", "-d", "memory", "-x", "cma", "-D", "zcopy"], pages
        path = {"tcp": "tcp,self", "mapped": "posix,self"}[path]
        return [*options, "-t", f"ucp_{kind}"], {"UCX_TLS": path}

    def _measure_one(self, path: str, size: int, seconds: float, cores: list[int]) -> float:
        options, choice = self._options(path, size, seconds)
        port = str(free_port())
        environment = {**os.environ, **self.environment, **choice}
        command = [str(self.program), "-p", port]
        pinned = [["taskset", "-c", str(core), *command] for core in cores]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(pinned[1], env=environment, **quiet)
        try:
            wait_listening(int(port), server)
            client = subprocess.run(
                [*pinned[0], "127.0.0.1", *options],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
            )
        finally:
            server.kill()
            server.wait()
        # iterations, percentile, average and overall latency in µs, average and overall MiB/s, rates
        figures = client.stdout.strip().splitlines()[-1].split(",")
        latency = "ucp_put_lat" in options
        return float(figures[1]) if latency else size / (float(figures[5]) * 1.048576)

    def measure(self, path: str, sizes: list[str], seconds: float, cores: list[int]) -> dict[str, float]:
        plain = [size for size in sizes if "x" not in size]
        if path == "tcp":  # Over its TCP it stands still from 256 MiB on.
            plain = [size for size in plain if parse_size(size) <= MOST_TCP]
        # In less than a page it takes small ones.
        sizes = [size for size in plain if path != "huge" or parse_size(size) >= HUGE_PAGE]
        return {size: self._measure_one(path, parse_size(size), seconds, cores) for size in sizes}


def wait_listening(port: int, server: subprocess.Popen) -> None:
    """Until the server listens; it takes one connection only, so that none can be tried."""
    wanted = f":{port:04X}"
    while server.poll() is None:
        with contextlib.suppress(OSError):
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                for line in pathlib.Path(table).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[1].endswith(wanted) and fields[3] == "0A":
                        return
    raise subprocess.SubprocessError(f"its server exited ({server.returncode}); leave ucx out with --peers")
