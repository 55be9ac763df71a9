"""A queue in a process of its own, as trainer 0 is one: `python rl_queue_alone.py LEASE DESCRIPTORS`.

Prints its port, and offers one item after another until its standard input ends. Each time it opens a file,
as a trainer does that writes a checkpoint.
"""

import logging
import resource
import sys
import threading

from rl_queues import item
from weightcast.errors import TimedOut
from weightcast.rl.rollout_queue import RolloutQueue
from weightcast.rl.timeline import Clock


def main() -> None:
    lease, descriptors = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    queue = RolloutQueue("127.0.0.1:0", trainers=1, lease=lease, clock=Clock(), telemetry=lambda *_: None)
    print(queue.port, flush=True)
    over = threading.Event()
    threading.Thread(target=lambda: over.set() if not sys.stdin.read() else None, daemon=True).start()
    iteration = 0
    while not over.is_set():
        iteration += 1
        queue.offer([item(0, iteration=iteration)])
        while not over.is_set():
            try:
                queue.take(iteration, 0, 0.2)
                break
            except TimedOut:
                pass
            finally:
                open("/proc/self/stat").close()
    queue.end()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
