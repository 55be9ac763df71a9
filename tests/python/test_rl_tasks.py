"""Tasks: what their prompts and rewards are, and how wrong input is refused."""

import json

import pytest

pytest.importorskip("torch")

from weightcast import InvalidArgument  # noqa: E402
from weightcast.rl import tasks  # noqa: E402


def lengths(prompts, completions):
    return [float(len(one)) for one in completions]


def too_few(prompts, completions):
    return [1.0]


def failing(prompts, completions):
    raise KeyError("no such prompt")


def endless(prompts, completions):
    return [float("nan")] * len(prompts)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(200)))
    return str(path)


@pytest.mark.parametrize("name", ["sort", "text"])
def test_prompts_depend_on_seed_and_iteration_alone(name):
    task = tasks.make(name)
    assert task.prompts(3, 64, 0) == tasks.make(name).prompts(3, 64, 0)
    assert task.prompts(3, 64, 0) != task.prompts(4, 64, 0)
    assert task.prompts(3, 64, 0) != task.prompts(3, 64, 1)
    assert task.prompts(3, 200, 0)[:64] == task.prompts(3, 64, 0)


@pytest.mark.parametrize("name", ["sort", "text"])
def test_held_out_prompts_are_500_and_never_trained_on(name):
    task = tasks.make(name)
    held_out = task.held_out()
    assert held_out == tasks.make(name).held_out()
    assert len(set(held_out)) == len(held_out) == 500
    trained = {one for iteration in range(200) for one in task.prompts(iteration, 128, 0)}
    assert not trained & set(held_out)


def test_sorting():
    task = tasks.make("sort")
    prompt = task.prompts(0, 1, 0)[0]
    assert len(set(prompt)) == 5 and prompt[:4].isdigit() and prompt[4] == "="
    assert task.correct("3141=", "1134")
    assert task.reward("3141=", "1134") == 1
    assert task.reward("3141=", "1143") == pytest.approx(0.25)
    assert task.reward("3141=", "11345") == pytest.approx(0.4)
    assert task.reward("3141=", "113") == pytest.approx(0.375)
    assert task.reward("3141=", "") == 0
    assert not task.correct("3141=", "11345")


def test_text():
    task = tasks.make("text")
    assert task.reward("A", "") == 0
    assert task.reward("A", "the " * 16) == pytest.approx(1 / 16)
    assert task.reward("A", "one two three four") == pytest.approx(4 / 16)
    sixteen = "a b c d e f g h i j k l m n o p"
    assert task.reward("A", sixteen) == 1
    assert task.correct("A", sixteen)


def test_prompts_of_a_file(lines):
    task = tasks.make(prompts=lines)
    held_out = task.held_out()
    assert 5 < len(held_out) < 50
    trained = {one for iteration in range(20) for one in task.prompts(iteration, 100, 0)}
    assert len(trained) + len(held_out) == 200 and not trained & set(held_out)
    assert task.reward("4+1=", " 5\n") == 1
    assert task.reward("4+1=", "6") == 0


def by_answer(prompts, completions, answer, weight=None):
    assert weight is None or len(weight) == len(prompts)
    return [
        float(one == wanted) * (scale or 1)
        for one, wanted, scale in zip(completions, answer, weight or [1] * 9, strict=False)
    ]


def by_columns(prompts, completions, **columns):
    return [float(len(columns)) for _ in prompts]


def by_colour(prompts, completions, colour):
    return [0.0] * len(prompts)


def test_an_epoch_has_each_prompt_once_in_an_order_of_its_own(lines):
    task = tasks.make(prompts=lines)
    count = 200 - len(task.held_out())
    drawn = [one for iteration in range(1, 2 * count + 1) for one in task.prompts(iteration, 3, 7)]
    epochs = [drawn[start : start + count] for start in range(0, len(drawn), count)]
    assert len(epochs) == 6 and all(len(set(one)) == count for one in epochs)
    assert len({tuple(one) for one in epochs}) == 6
    assert task.prompts(5, 3, 7) == tasks.make(prompts=lines).prompts(5, 3, 7) != task.prompts(5, 3, 8)


def test_a_reward_sees_the_columns_of_its_prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1), "weight": n % 2 + 1} for n in range(200)]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = tasks.make(prompts=str(path), reward=f"{__name__}:by_answer")
    assert task.rewards(["4+1=", "5+1=", "5+1="], ["5", "6", "7"]) == [1, 2, 0]
    assert tasks.make(prompts=str(path), reward=f"{__name__}:by_columns").rewards(["4+1="], ["5"]) == [2]
    with pytest.raises(InvalidArgument, match="parameter 'colour', which no line of --prompts has"):
        tasks.make(prompts=str(path), reward=f"{__name__}:by_colour")
    with pytest.raises(InvalidArgument, match="parameter 'answer'"):
        tasks.make("sort", reward=f"{__name__}:by_answer")


def test_an_evaluation_is_judged_by_the_user_s_reward(lines):
    own = tasks.make(prompts=lines)
    assert own.judged_by == "accuracy" and own.judge(["4+1=", "5+1="], ["5", "5"]) == [1, 0]
    users = tasks.make(prompts=lines, reward=f"{__name__}:lengths")
    assert users.judged_by == "reward" and users.judge(["4+1=", "5+1="], ["555", ""]) == [3, 0]


def test_a_reward_of_the_user_s(lines):
    task = tasks.make("sort", reward=f"{__name__}:lengths")
    assert task.rewards(["21=", "43="], ["1", "345"]) == [1, 3]
    assert task.correct("21=", "12")
    assert task.held_out() == tasks.make("sort").held_out()
    assert tasks.make(prompts=lines, reward=f"{__name__}:lengths").rewards(["4+1="], ["xy"]) == [2]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("too_few", "returned 1 numbers for 2"),
        ("failing", "KeyError: 'no such prompt'"),
        ("endless", "gave completion 0 .*; return finite numbers"),
    ],
)
def test_a_reward_that_fails_says_so_in_a_line(function, said):
    task = tasks.make("sort", reward=f"{__name__}:{function}")
    with pytest.raises(InvalidArgument, match=said) as error:
        task.rewards(["21=", "43="], ["1", "345"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "reward", ["no_such_module:f", f"{__name__}:no_such_function", __name__, ":", f"{__name__}:json"]
)
def test_a_reward_that_cannot_be_had_is_refused(reward):
    with pytest.raises(InvalidArgument, match="reward"):
        tasks.make("sort", reward=reward)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "prompts.jsonl:1 is not JSON"),
        ('{"prompt": "a"}\n\n{"prompt": 1}', "prompts.jsonl:3 has no text .prompt."),
        ('{"prompt": "a", "answer": 2}', "answer that is not a text"),
        ('{"prompt": "a", "answer": "b"}', "give some dozens"),
        ("", "0 distinct prompts"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, said):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        tasks.make(prompts=str(path))


def test_prompts_without_answers_need_a_reward(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{n}"}) for n in range(200)))
    with pytest.raises(InvalidArgument, match="--reward"):
        tasks.make(prompts=str(path))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        tasks.make(prompts=str(tmp_path / "nothing"))
