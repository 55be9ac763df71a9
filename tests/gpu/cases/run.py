"""The stages of tests/gpu/run.sh."""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

from steps import Steps, Stop, Tools

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
STAGES = ("smoke", "probe", "measure", "settings", "slowdown", "endure", "rl")


def unpack(folder: pathlib.Path) -> pathlib.Path:
    """What tests/gpu/pack made, below `folder`; the Python package in `site`."""
    archive = pathlib.Path(os.environ.get("WC_GPU_CARRY", ROOT / ".gpu")) / "carry.tar.xz"
    if not archive.exists():
        sys.exit(f"run.sh: {archive} is missing; tests/gpu/pack makes it")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    wheels = sorted(folder.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", folder / "site", *wheels], check=True)
    if (folder / "nixl").exists():
        for part in (folder / "nixl").iterdir():
            part.rename(folder / "site" / part.name)
    return folder


def gpus_of(fake: bool) -> int:
    if fake:
        return int(os.environ.get("WC_GPU_FAKE_DEVICES", "2"))
    names = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True, timeout=60)
    return len(names.stdout.splitlines())


def carried_tools(folder: pathlib.Path, gpus: int) -> Tools:
    unpack(folder)
    binary = folder / "site" / "bin" / "weightcast"
    os.environ["LD_LIBRARY_PATH"] = f"{folder / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return Tools(
        sys.executable, binary, folder / "contract", folder / "kernels_on_gpu", folder / "gpu_probe",
        folder / "site", None, gpus,
    )  # fmt: skip


def built_tools(gpus: int) -> Tools:
    """Of this machine's debug build, with the fake driver. WC_GPU_SITE: a folder with the Python package."""
    build = pathlib.Path(os.environ.get("WC_GPU_BUILD", ROOT / "build" / "debug"))
    site = os.environ.get("WC_GPU_SITE")
    if site is None:
        sys.exit("run.sh --fake: set WC_GPU_SITE to a folder with the package weightcast")
    tests = build / "tests"
    return Tools(
        sys.executable, build / "weightcast", tests / "contract" / "contract",
        tests / "gpu" / "kernels_on_gpu", tests / "gpu" / "gpu_probe", pathlib.Path(site),
        tests / "libfake_cuda.so", gpus,
    )  # fmt: skip


class Stages:
    def __init__(self, steps: Steps) -> None:
        self.steps, self.tools = steps, steps.tools
        self.fake = self.tools.fake is not None

    def _case(self, case: str, limit: float = 120, **more: str) -> None:
        self.steps.run(f"case {case}", self.tools.python, HERE / "main.py", case, limit=limit, **more)

    def smoke(self) -> None:
        before = self._used()
        self._kernels_and_contract()
        self._demos()
        for case in ("tensors", "shadow", "graph", "ordering", "cast", "digest", "compare"):
            self._case(case)
        if self.fake:
            self.steps.leave_out("case tensors, expandable segments", "torch's allocator alone has them")
        else:
            self.steps.run(
                "case tensors, expandable segments", self.tools.python, HERE / "main.py", "tensors",
                PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
            )  # fmt: skip
        self._sanitizer()
        self._case("qwen2.5-7b", limit=240)
        if before is None:
            self.steps.leave_out("memory before and after", "each step looks at its own fake machine")
        else:
            after = self._used()
            self.steps.expect(
                "memory before and after", after == before, f"MiB in use: {before}, then {after}"
            )

    def _kernels_and_contract(self) -> None:
        contract = self.tools.contract
        if self.fake:
            self.steps.leave_out("kernels", "kernels_on_gpu needs libcuda itself")
            some = "*GrantTest*/shm_pull_device:*TransferTest*/shm_pull_device:*ProcessTest*/shm_pull_device"
            self.steps.run("contract", contract, f"--gtest_filter={some}", "--gtest_brief=1", limit=200)
            return
        self.steps.run("kernels, both PTX texts", self.tools.kernels, limit=120)
        one_gpu = {"CUDA_VISIBLE_DEVICES": "0"}
        self.steps.run(
            "contract, one GPU", ROOT / "tests" / "gpu" / "contract", contract, 8, limit=240, **one_gpu
        )
        if self.tools.gpus > 1:
            self.steps.run(
                "contract, between two GPUs", ROOT / "tests" / "gpu" / "contract", contract, 8, limit=240
            )

    def _demos(self) -> None:
        size = ["--versions", 2 if self.fake else 3, "--json"]
        if self.fake:
            size += ["--trainers", 1, "--inference", 1, "--checkpoint", self._small_model()]
        for name, options in {
            "cuda": ["--memory", "cuda"],
            "cuda-pages": ["--memory", "cuda-pages"],
            "shadow": ["--memory", "cuda", "--landing", "shadow"],
            "mixed": ["--memory", "mixed"],
            "tcp": ["--memory", "cuda", "--transport", "tcp"],
        }.items():
            self.steps.run(f"demo {name}", self.tools.weightcast, "demo", *options, *size)

    def _small_model(self) -> pathlib.Path:
        """As the test of the demo on the fake driver has it."""
        sys.path.insert(0, str(ROOT / "tests" / "fake_cuda"))
        os.environ.setdefault("WC_TEST_BINARY", str(self.tools.weightcast))
        os.environ.setdefault("WC_TEST_CUDA_LIBRARY", str(self.tools.fake))
        import demo_test

        path = self.steps.out / "model.safetensors"
        demo_test.write_model(path)
        return path

    def _sanitizer(self) -> None:
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            self.steps.leave_out("memcheck", "no compute-sanitizer is here")
            return
        self.steps.run(
            "memcheck of a demo", tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode",
            99, self.tools.weightcast, "demo", "--memory", "cuda", "--versions", 2, "--json", limit=240,
        )  # fmt: skip

    def _used(self) -> list[int] | None:
        """MiB in use on each GPU; None: on the fake."""
        if self.fake:
            return None
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        found = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
        return [int(line) for line in found.splitlines()]

    def probe(self) -> None:
        self.steps.run("gpu_probe", self.tools.probe, "all", limit=90)

    def measure(self) -> None:
        program = ROOT / "bench" / "gpu.py"
        small = ["--small"] if self.fake else []
        binary = ["--binary", self.tools.weightcast, "--gpus", self.tools.gpus]
        self.steps.run("bench/gpu.py", self.tools.python, program, *binary, *small, limit=560)

    def settings(self) -> None:
        program = ROOT / "bench" / "gpu_settings.py"
        small = ["--small"] if self.fake else []
        table = self.steps.out / "settings.md"
        options = ["--binary", self.tools.weightcast, "--gpus", self.tools.gpus, "--table", table]
        self.steps.run("bench/gpu_settings.py", self.tools.python, program, *options, *small, limit=175)
        print(table.read_text(), flush=True)

    def slowdown(self) -> None:
        if self.tools.gpus < 2 and not self.fake:
            self.steps.leave_out("bench/gpu_slowdown.py", "it wants two GPUs, and there is one")
            return
        program = ROOT / "bench" / "gpu_slowdown.py"
        self.steps.run("bench/gpu_slowdown.py", self.tools.python, program, limit=170)

    def rl(self) -> None:
        program, table = ROOT / "bench" / "gpu_rl.py", self.steps.out / "rl.md"
        rehearsal = ["--small", "--device", "cpu"] if self.fake else []
        options = ["--gpus", self.tools.gpus, "--table", table]
        self.steps.run("bench/gpu_rl.py", self.tools.python, program, *options, *rehearsal, limit=480)
        print(table.read_text(), flush=True)

    def endure(self) -> None:
        self._case("endure", limit=540, WC_GPU_UPDATES="60" if self.fake else "1000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="+", choices=STAGES, metavar="STAGE")
    parser.add_argument("--fake", action="store_true", help="on the fake driver")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "gpu-run", metavar="DIR")
    options = parser.parse_args()
    gpus = gpus_of(options.fake)
    with tempfile.TemporaryDirectory(prefix="weightcast-gpu-") as folder:
        tools = built_tools(gpus) if options.fake else carried_tools(pathlib.Path(folder), gpus)
        steps = Steps(options.out, tools)
        stages, failed = Stages(steps), ""
        print(f"{gpus} GPUs, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
        for name in options.stages:
            steps.stage = name
            try:
                getattr(stages, name)()
            except Stop as stop:
                failed = str(stop)
                break
    table = steps.table()
    (options.out / "table.md").write_text(table)
    print(table, flush=True)
    if failed:
        sys.exit(f"FAILED {failed}")


if __name__ == "__main__":
    main()
