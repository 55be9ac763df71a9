"""python -m weightcast.rl: see options."""

from __future__ import annotations

import logging
import os
import sys

from .. import Error
from .failures import in_one_line, is_lost_rank


def main() -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    # Several processes share a machine's cores; a process that wants more says so.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        from . import start
        from .options import parse

        with start.one_rank_speaks():
            options = parse(sys.argv[1:])
        start.run(options)
    except ModuleNotFoundError as error:
        return _fail(f"{error}; pip install 'weightcast[rl]'")
    except Error as error:
        return _fail(str(error))
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        return _fail(in_one_line(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _flush() -> None:
    """Standard output may be a file on a full disk: what it does not take is no failure of the run."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(reason: str) -> int:
    rank = os.environ.get("RANK")
    print(f"weightcast.rl{f' (rank {rank})' if rank else ''}: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    status = main()
    _flush()
    sys.exit(status)
