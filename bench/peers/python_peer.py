"""A peer with an API for Python: its own file is the program that measures, inside its environment."""

import json
import os
import pathlib
import subprocess

from . import Missing


def check_import(python: pathlib.Path, module: str, environment: dict[str, str]) -> None:
    """Raises Missing when it does not load here."""
    command, environment = [str(python), "-c", f"import {module}"], {**os.environ, **environment}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Missing(f"{python} cannot import {module} ({reason}); install what is missing there")


def measure(
    python: pathlib.Path,
    program: str,
    environment: dict[str, str],
    sizes: list[str],
    seconds: float,
    cores: list[int],
    at_target: dict[str, str] | None = None,
) -> dict[str, float]:
    """`at_target`: what the target's environment has beyond the source's."""
    command = [str(python), program, "--sizes", ",".join(sizes), "--seconds", str(seconds)]
    command += ["--cores", ",".join(map(str, cores))]
    environment = {**os.environ, **environment, "PAIR_TARGET_ENVIRONMENT": json.dumps(at_target or {})}
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    return {one["size"]: one["p50_us"] for one in json.loads(result.stdout)["results"]}
