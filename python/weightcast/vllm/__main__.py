"""`python -m weightcast.vllm check`: what of a checkpoint goes where in vLLM, without weights."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from dataclasses import asdict

from ..errors import Error
from .headers import offered_by


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m weightcast.vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="whether vLLM takes a model's tensors from weightcast, and which box of which goes where",
        description="Runs vLLM's own loader for each rank of an engine, with tensors that have no memory. "
        "Needs no controller, no other process and no GPU. Where an engine would refuse: exit status 1, and "
        "a line that says why.",
    )
    check.add_argument("--model", required=True, metavar="PATH", help="folder of the model that vLLM serves")
    check.add_argument(
        "--weights", metavar="PATH", help="folder with the trainers' tensors as *.safetensors (--model's)"
    )
    check.add_argument("--tp", type=int, default=1, metavar="N", help="tensor_parallel_size (1)")
    check.add_argument("--dtype", default="auto", help="dtype of the engine (auto)")
    check.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What vLLM prints is no part of the answer.
    try:
        offered = offered_by(pathlib.Path(options.weights or options.model))
        from .check import mapping, table  # Which takes a while.

        found = mapping(options.model, offered, options.tp, options.dtype)
    except Error as error:
        print(f"weightcast: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(found)) if options.json else table(found), file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
