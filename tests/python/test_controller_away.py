"""A controller that goes away for longer than every time limit: the same objects go on with the next one."""

import numpy as np
import pytest

import weightcast as wc

SETTINGS = {"lease": 0.5, "controller_timeout": 1, "timeout": 20}


@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_calls_end_and_may_be_made_again(landing):
    sent, got = {"w": np.full((64, 8), 1, np.float32)}, {"w": np.zeros((64, 8), np.float32)}
    first = wc.Controller("127.0.0.1:0", settings=SETTINGS)
    trainer = wc.Trainer(first.address, settings=SETTINGS)
    worker = wc.Inference(first.address, engine="e", settings=SETTINGS)
    trainer.register(sent)
    worker.register(got, landing=landing)
    update = trainer.publish(1)
    assert worker.wait().number == 1
    update.wait()
    first.stop()

    for _ in range(2):
        with pytest.raises(wc.Unavailable, match="no controller for"):
            worker.wait(timeout=20)
        assert (worker.version.number, worker.state) == (1, "SERVING")
        assert (got["w"] == 1).all()
    with pytest.raises(wc.TimedOut):
        worker.wait(timeout=0.1)
    with pytest.raises(wc.Unavailable, match="no controller for"):
        trainer.engines()
    update = trainer.publish(2)
    with pytest.raises(wc.UpdateAborted, match="no controller for") as aborted:
        update.wait(timeout=20)
    assert isinstance(aborted.value.__cause__, wc.Unavailable)
    with pytest.raises(wc.UpdateAborted, match="no controller for"):
        update.wait_sources(timeout=20)
    sent["w"][:] = 3  # The sources are free.

    with wc.Controller(first.address, settings=SETTINGS):
        update = trainer.publish(3)
        assert worker.wait(timeout=20).number == 3
        update.wait(timeout=20)
        assert (got["w"] == 3).all()
        worker.close()
        trainer.close()
