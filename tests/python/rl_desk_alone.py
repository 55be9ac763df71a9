"""A desk in a process of its own, as trainer 0 is one: `python rl_desk_alone.py LEASE DESCRIPTORS`.

Prints its port, and offers one item after another until its standard input ends. Each time it opens a file,
as a trainer does that writes a checkpoint.
"""

import logging
import resource
import sys
import threading

from rl_desks import item
from weightcast.errors import TimedOut
from weightcast.rl.desk import Desk
from weightcast.rl.timeline import Clock


def main() -> None:
    lease, descriptors = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    desk = Desk("127.0.0.1:0", trainers=1, lease=lease, clock=Clock(), news=lambda *_: None)
    print(desk.port, flush=True)
    over = threading.Event()
    threading.Thread(target=lambda: over.set() if not sys.stdin.read() else None, daemon=True).start()
    iteration = 0
    while not over.is_set():
        iteration += 1
        desk.offer([item(0, iteration=iteration)])
        while not over.is_set():
            try:
                desk.take(iteration, 0, 0.2)
                break
            except TimedOut:
                pass
            finally:
                open("/proc/self/stat").close()
    desk.end()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
