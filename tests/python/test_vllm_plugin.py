"""vLLM forks after it has loaded its plugins: importing ours may make nothing."""

import json
import subprocess
import sys
from importlib.metadata import entry_points

SCRIPT = """
import json, os, sys
import numpy
threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
import weightcast.vllm
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")) - threads,
    "files": len(os.listdir("/proc/self/fd")) - files,
    "modules": [name for name in ("torch", "vllm") if name in sys.modules],
}))
"""


def test_the_import_makes_no_threads_and_opens_nothing():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(run.stdout) == {"threads": 0, "files": 0, "modules": []}


def test_the_package_names_the_plugin():
    found = [one for one in entry_points(group="vllm.general_plugins") if one.name == "weightcast"]
    assert [one.value for one in found] == ["weightcast.vllm:register"]
    assert callable(found[0].load())
