"""The controller as a process of its own, which ends with the process that started it."""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
from typing import Any

from .. import Controller, Error, Unavailable

_START = 120.0  # Seconds that it may take to listen; packages may come over a network.
_PATIENCE = 30.0  # Seconds that it may take to end.


class OwnController:
    """Starts one; `address` is "host:port"."""

    def __init__(self, listen: str, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "weightcast.rl.controller", listen, json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START)[0]:
            self._process.kill()
            self.stop()
            raise Unavailable(f"the controller has not started within {_START:g} s; start the run again")
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            self.stop()
            raise Unavailable("the controller does not start; its own words are above")

    def stop(self) -> None:
        """It ends when its input does, so also when this process is killed."""
        try:
            self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listen", help="host:port")
    parser.add_argument("settings", help="JSON object")
    arguments = parser.parse_args()
    try:
        with Controller(arguments.listen, settings=json.loads(arguments.settings)) as controller:
            print(controller.address, flush=True)
            sys.stdin.read()
    except Error as error:
        sys.exit(f"weightcast.rl.controller: {error}")


if __name__ == "__main__":
    main()
