"""Options and roles of the loop: what cannot work is refused before anything starts, in one line."""

import dataclasses
import json
import re

import pytest

import weightcast as wc
from cli import ROOT
from weightcast.rl.options import Options, parse
from weightcast.rl.roles import roles_of


def refused(*arguments: str) -> str:
    with pytest.raises(wc.InvalidArgument) as error:
        parse(list(arguments))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_seeds_options_are_taken():
    given = (
        "--model_name=gpt2 --num_training=16 --num_inference=8 --rl_iterations=10 --ppo_epochs=4 "
        "--rollouts_per_gpu=8 --max_gen_length=32 --dtype=bfloat16 --num_shards=1"
    )
    options = parse(given.split())
    assert (options.num_training, options.num_inference, options.dtype) == (16, 8, "bfloat16")
    assert (options.algorithm, options.ppo_epochs, options.model_name) == ("ppo", 4, "gpt2")
    assert options.prompts_of_iteration == 8 * 8 and options.samples == 1


GPT2 = "--num_training=24 --num_inference=8     --rl_iterations=10 --ppo_epochs=4 --rollouts_per_gpu=8"
QWEN = "--model_name Qwen/Qwen2.5-0.5B --num_training=8 --num_inference=8 --dtype bfloat16"


def test_the_seeds_own_lines():
    """As its README types them for each node. The first one's model is in its script's name."""
    named = f"--model_name gpt2 {GPT2}"
    for given, world_size, dtype in ((named, 32, "float32"), (QWEN, 16, "bfloat16")):
        options = parse(given.split())
        assert (options.algorithm, options.task, options.dtype) == ("ppo", "text", dtype)
        assert (options.rollouts_per_gpu, options.prompts_of_iteration, options.samples) == (8, 64, 1)
        assert len(roles_of(options, world_size).engines) == 8 and options.model_name in given
        assert " ".join(given.split()) in (ROOT / "docs" / "quickstart_rl.md").read_text()
    assert (parse(GPT2.split()).model_name, parse(GPT2.split()).task) == ("tiny", "sort")
    assert parse([*QWEN.split(), "--task", "sort"]).task == "sort"


def test_each_engine_has_its_rollouts_and_trainers_share_them():
    """The seed's 24 trainers and 8 engines: shares of 64 prompts, none of them empty."""
    options = Options(num_training=24, num_inference=8, rollouts_per_gpu=8)
    shares = [list(range(64))[options.share_of(rank)] for rank in range(24)]
    assert [one for share in shares for one in share] == list(range(64))
    assert {len(share) for share in shares} == {2, 3}
    assert options.prompts_of_item == 3
    assert Options(num_training=2, num_inference=2, rollouts_per_gpu=8).prompts_of_item == 8


def test_a_trained_model_is_kept_by_default_and_examples_that_start_from_nothing_say_their_rate():
    assert Options().learning_rate <= 1e-5
    files = sorted((ROOT / "examples").glob("rl_*.json"))
    assert files
    for file in files:
        given = json.loads(file.read_text())
        assert given["model_name"].startswith("tiny") and given["learning_rate"] >= 1e-4


def test_help_has_every_option_in_its_group_and_no_long_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    parts = re.split(r"^(\w+):$", printed, flags=re.M)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    expected = ["options", "processes", "model", "data", "algorithm", "rollout", "transfer", "output"]
    assert list(groups) == [*expected, "examples"]
    found = {title: re.findall(r"^  --(\w+)", text, re.M) for title, text in groups.items()}
    assert sorted(sum((found[title] for title in expected[1:]), [])) == sorted(
        field.name for field in dataclasses.fields(Options)
    )
    assert "--config examples/rl_sort.json" in groups["examples"].split("\n")[1]  # It learns.
    for title, name in (("model", "dtype"), ("data", "reward"), ("algorithm", "clip"), ("transfer", "sync")):
        assert name in found[title]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--num_training 0", "num_training"),
        ("--rollouts_per_gpu x", "rollouts_per_gpu"),
        ("--temperature 0", "temperature"),
        ("--algorithm dpo", "dpo"),
        ("--num_shards 2", "one process, which holds the whole model; engines of several"),
        ("--num_training 9 --num_inference 1", "fewer prompts than 9 trainers"),
        ("--clip -0.2", "--clip is -0.2; it must be above 0"),
        ("--clip nan", "--clip is nan"),
        ("--kl_coefficient -1", "it must be 0 or more"),
        ("--log_samples -1", "--log_samples is -1; it must be 0 or more"),
        ("--entropy_coefficient inf", "--entropy_coefficient is inf"),
        ("--gamma 1.5", "--gamma is 1.5; it must be in [0, 1]"),
        ("--gamma -0.5", "--gamma is -0.5; it must be in [0, 1]"),
        ("--gae_lambda -0.1", "--gae_lambda is -0.1"),
        ("--lease 0.01", "--lease is 0.01; it must be at least 0.5 s"),
        ("--learning_rate inf", "--learning_rate is inf; it must be above 0, and finite"),
        ("--dtype float16", "choose from 'float32', 'bfloat16'"),
        ("--mode async --sync collective", "async"),
        ("--role inference --rollout_queue a:1", "--controller"),
        ("--role trainer --controller a:1", "--rollout_queue"),
        ("--role trainer --rollout_queue a:1", "--controller"),
        ("--role inference --rollout_queue a --controller a:1", "--rollout_queue is 'a'"),
        ("--role trainer --rollout_queue :1 --controller a:1 --sync both", "process group"),
        ("--resume", "--checkpoint_dir"),
        ("--algorithm grpo --samples_per_prompt 1", "samples_per_prompt"),
        (
            "--checkpoint_dir ck --checkpoint_every 3 --sync_every 2 --rl_iterations 4",
            "multiples of --sync_every 2",
        ),
        ("--checkpoint_dir ck --sync_every 2 --rl_iterations 5", "multiples of --sync_every 2"),
        ("--log mlflow", "mlflow"),
        ("--unknown 3", "--unknown"),
    ],
)
def test_what_cannot_work_is_refused(arguments, word):
    assert word in refused(*arguments.split())


def test_a_file_gives_options_and_flags_win(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"num_training": 3, "learning_rate": 1, "verify": True}))
    options = parse(["--config", str(file), "--num_training", "4"])
    assert (options.num_training, options.learning_rate, options.verify) == (4, 1.0, True)


@pytest.mark.parametrize(
    "content",
    ['{"num_trainers": 3}', '{"num_training": "3"}', '{"mode": "later"}', "[]", "{", '{"verify": 1}'],
)
def test_a_file_with_mistakes_is_refused(tmp_path, content):
    file = tmp_path / "run.json"
    file.write_text(content)
    assert str(file) in refused("--config", str(file))


def test_trainers_come_first_and_engines_last():
    roles = roles_of(Options(num_training=16, num_inference=8), 32)
    assert (roles.controller, roles.idle) == (16, tuple(range(17, 24)))
    assert roles.engines == tuple(range(24, 32))
    assert [roles.of(rank) for rank in (0, 16, 20, 31)] == ["trainer", "controller", "idle", "inference"]


def test_without_a_rank_to_spare_no_rank_has_the_controller_alone():
    roles = roles_of(Options(num_training=24, num_inference=8), 32)
    assert (roles.controller, roles.idle) == (None, ())


def test_the_controller_may_be_any_rank_between():
    roles = roles_of(Options(num_training=2, num_inference=2, controller_rank=3), 6)
    assert (roles.controller, roles.idle) == (3, (2,))


@pytest.mark.parametrize(
    ("options", "world_size"),
    [
        (Options(num_training=2, num_inference=2), 3),
        (Options(num_training=2, num_inference=2, controller_rank=1), 6),
        (Options(num_training=2, num_inference=2, controller_rank=2), 4),
        (Options(num_training=2, num_inference=2, role="trainer", rollout_queue=":1"), 4),
    ],
)
def test_ranks_that_cannot_hold_the_roles_are_refused(options, world_size):
    with pytest.raises(wc.InvalidArgument):
        roles_of(options, world_size)


def test_a_wrong_name_in_a_file_is_answered_by_the_nearest(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"learning_rat": 1}))
    assert "no option 'learning_rat'; 'learning_rate' is one" in refused("--config", str(file))
