"""Slowness that is planted, and what `weightcast explain` says of it."""

import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from scene import ROOT, Scene

sys.path.insert(0, str(ROOT / "tests" / "python"))

from cli import fails, run  # noqa: E402

USUAL = 12  # Updates before something is planted.
# Of an update that takes some 20 ms: seconds that are planted. Longer ones, as a debug build on a busy
# machine may take tens of milliseconds more at any time.
PLANTED = 1.0


class Explain(unittest.TestCase):
    def scene(self, **options: object) -> Scene:
        scene = Scene(**options)
        self.addCleanup(scene.close)
        for _ in range(USUAL):
            scene.update()
        return scene

    def expect(self, update: dict, cause: str, worker: str) -> None:
        verdict = update["verdict"]
        said = json.dumps({"verdict": verdict, "costs": update["costs"], "path": update["path"]}, indent=1)
        self.assertTrue(verdict["slow"], said)
        self.assertEqual((verdict["cause"], verdict["worker"]), (cause, worker), said)
        self.assertGreater(verdict["seconds"], PLANTED / 2, said)

    def test_steps_cover_the_update_and_a_trace_is_written(self) -> None:
        scene = self.scene()
        updates = scene.explain("--last", 200)
        self.assertEqual([update["version"] for update in updates], list(range(1, USUAL + 1)))
        for update in updates:
            at = 0.0
            for step in update["path"]:
                self.assertAlmostEqual(step["begin"], at, places=6)
                self.assertAlmostEqual(
                    sum(cost["seconds"] for cost in step["costs"]), step["seconds"], places=6
                )
                at += step["seconds"]
            self.assertAlmostEqual(at, update["seconds"], places=6)
            self.assertEqual(update["bytes"], 2 * (16 << 20))
            self.assertEqual([step["step"] for step in update["path"]][-1], "serve")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            arguments = ["explain", "--controller", scene.address, "--last", 2, "--trace", path]
            result = run(*arguments, env={**os.environ, **scene._env})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(result.stdout.splitlines()), 2, result.stdout)
            events = json.loads(path.read_text())["traceEvents"]
            names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
            self.assertLessEqual({"critical path", "trainer 0", "engine e0 rank 0"}, names)
            self.assertTrue(all(event["dur"] >= 0 for event in events if event["ph"] == "X"))
        one = run("explain", "--controller", scene.address, env={**os.environ, **scene._env})
        self.assertIn("receive", one.stdout)
        self.assertIn("to fix it:", one.stdout)
        none = run(
            "explain", "--controller", scene.address, "--update", 999, env={**os.environ, **scene._env}
        )
        fails(none, "no update to version 999")

    def test_a_late_trainer(self) -> None:
        self.expect(self.scene().update({"trainer 1": int(PLANTED * 1000)}), "late_trainer", "trainer 1")

    def test_a_late_engine(self) -> None:
        update = self.scene().update({"engine e1": int(PLANTED * 1000)})
        self.expect(update, "late_engine", "engine e1 rank 0")

    def test_a_rank_that_is_stopped(self) -> None:
        scene = self.scene()
        with scene.stopped("engine e0"):
            scene.begin()
            time.sleep(PLANTED)
        self.expect(scene.end(), "stopped", "engine e0 rank 0")

    def test_a_controller_that_is_stopped(self) -> None:
        scene = self.scene()
        with scene.stopped("engine e0"):
            scene.begin()
            time.sleep(0.2)  # The update is open, and waits for that rank.
            with scene.stopped("controller"):
                time.sleep(PLANTED)
        self.expect(scene.end(), "busy_controller", "")

    def test_a_controller_that_is_stopped_while_a_trainer_is_late(self) -> None:
        scene = self.scene()
        late = PLANTED / 2
        scene.begin({"trainer 1": int(late * 1000)})
        time.sleep(0.1)  # Trainer 0 has published.
        with scene.stopped("controller"):
            time.sleep(2 * PLANTED)
        update = scene.end()
        self.expect(update, "busy_controller", "")
        second = update["costs"][1]
        self.assertEqual((second["cause"], second["worker"]), ("late_trainer", "trainer 1"), update["costs"])
        self.assertAlmostEqual(second["seconds"], late, delta=late / 2)

    def test_a_late_trainer_is_not_excused_by_a_controller_that_is_stopped_meanwhile(self) -> None:
        scene = self.scene()
        scene.begin({"trainer 1": int(2 * PLANTED * 1000)})
        time.sleep(0.1)
        with scene.stopped("controller"):
            time.sleep(1.2 * PLANTED)
        self.expect(scene.end(), "late_trainer", "trainer 1")

    def test_a_trainer_that_casts_slowly(self) -> None:
        scene = self.scene(dtype="BF16", trainers=1, shape=(2, 256, 1024))
        with scene.starved("trainer 0", "wc-send"):
            scene.begin()
            time.sleep(3 * PLANTED)  # A debug build casts slowly at any time.
        self.expect(scene.end(), "slow_cast", "trainer 0")

    def test_nobody_has_updated_yet(self) -> None:
        scene = Scene()
        self.addCleanup(scene.close)
        result = run("explain", "--controller", scene.address, env={**os.environ, **scene._env})
        fails(result, "remembers no update")


if __name__ == "__main__":
    unittest.main()
