"""Rows with a timeout: killed, reported, and the pool goes on."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import reward_samples as zoo
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import FunctionReward, RewardRunner

ROOT = Path(zoo.__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'support'}{os.pathsep}{ROOT}"}


def rows(*completions):
    return [sample(row, completion) for row, completion in enumerate(completions)]


def test_rew_03_one_row_hangs(caplog):
    """REW-03: the row abstains, its id is logged, the call is back soon, the pool is usable."""
    with RewardRunner([zoo.Sleeper(timeout=1)], max_workers=2) as runner:
        start = time.monotonic()
        values = runner.evaluate(rows("0", "60", "0", "0"))
        elapsed = time.monotonic() - start
        assert values == [[0.0], [None], [2.0], [3.0]]
        assert 1 <= elapsed < 4
        assert "'sleeper' abstains on row 1: past its timeout of 1 s" in caplog.text

        start = time.monotonic()
        assert runner.evaluate(rows("0", "0")) == [[0.0], [1.0]]
        assert time.monotonic() - start < 3


def test_a_row_inside_c_code_is_killed_at_its_timeout():
    with RewardRunner([zoo.Busy(timeout=0.5)], max_workers=1) as runner:
        start = time.monotonic()
        assert runner.evaluate(rows("hang", "x")) == [[None], [1.0]]
        assert time.monotonic() - start < 3


def test_many_hanging_rows_end_at_the_bound(caplog):
    with RewardRunner([zoo.Sleeper(timeout=1)], max_workers=1, max_seconds=2.5) as runner:
        start = time.monotonic()
        values = runner.evaluate(rows("0", *["60"] * 20))
        assert time.monotonic() - start < 4
        assert values == [[0.0]] + [[None]] * 20
        assert "row 20: not scored within the 2.5 s" in caplog.text
        assert runner.evaluate(rows("0"))[0] == [0.0]


def test_default_bound_lets_every_row_use_its_timeout():
    from rlzoo.rewards.pool import WorkerPool

    pool = WorkerPool(zoo.Sleeper(timeout=3), max_workers=2)
    assert pool._limit(5) == 30 + 3 * (3 + 2)


def test_batch_reward_has_one_timeout_for_the_batch():
    with RewardRunner([zoo.SlowBatch([1.0, 1.0], timeout=0.3)]) as runner:
        assert runner.evaluate(rows("a", "b")) == [[None], [None]]


def test_exceptions_cross_the_process_boundary(caplog):
    with RewardRunner([zoo.Picky(timeout=20)], max_workers=1) as runner:
        with pytest.raises(
            UserError, match="'picky' failed on row 1: RuntimeError: no such number"
        ) as info:
            runner.evaluate(rows("a", "bad", "c"))
        assert isinstance(info.value.__cause__, RuntimeError)
        assert 'raise RuntimeError("no such' in str(info.value.__cause__.__cause__)
        assert runner.evaluate(rows("a")) == [[1.0]]
    with RewardRunner([zoo.Picky(timeout=20, on_error="abstain")], max_workers=1) as runner:
        assert runner.evaluate(rows("a", "bad")) == [[1.0], [None]]
        assert "abstains on row 1: RuntimeError: no such number" in caplog.text


def test_an_exception_that_does_not_pickle_is_still_reported():
    with (
        RewardRunner([zoo.Unpicklable(timeout=20)], max_workers=1) as runner,
        pytest.raises(UserError, match="failed on row 0: Hidden: shy"),
    ):
        runner.evaluate(rows("a"))


def test_contract_breaches_in_a_worker_name_the_row():
    with (
        RewardRunner([zoo.Returns(float("nan"), timeout=20)], max_workers=1) as runner,
        pytest.raises(UserError, match=r"reward 'returns' returned nan for row 7"),
    ):
        runner.evaluate([sample(7)])


def test_a_worker_that_dies_is_an_error_of_its_row():
    with RewardRunner([zoo.Dies(timeout=20, on_error="abstain")], max_workers=1) as runner:
        assert runner.evaluate(rows("x", "die", "y")) == [[1.0], [None], [1.0]]


def test_a_pool_that_breaks_is_replaced_and_no_row_is_lost(monkeypatch):
    """Under load pebble may see a dead worker before it knows which row that one had."""
    from concurrent.futures.process import BrokenProcessPool

    from pebble.pool.process import PoolManager

    find = PoolManager.find_expired_task
    breaks = []

    def unlucky(self, worker):
        if not breaks:
            breaks.append(worker)
            raise BrokenProcessPool("All workers expired")
        return find(self, worker)

    monkeypatch.setattr(PoolManager, "find_expired_task", unlucky)
    with RewardRunner([zoo.Dies(timeout=20, on_error="abstain")], max_workers=1) as runner:
        assert runner.evaluate(rows("x", "die", "y")) == [[1.0], [None], [1.0]]
    assert len(breaks) == 1


def test_workers_that_die_between_iterations_are_replaced():
    with RewardRunner([FunctionReward(pid, timeout=20)], max_workers=1) as runner:
        ((first,),) = runner.evaluate(rows("a"))
        os.kill(int(first), signal.SIGKILL)
        ((second,),) = runner.evaluate(rows("a"))
    assert first != second


def test_unpicklable_reward_is_refused_with_the_remedy():
    reward = FunctionReward(lambda completion: 1.0, timeout=1.0)
    with pytest.raises(
        UserError, match="move its function or class to the top level of a module"
    ) as info:
        RewardRunner([reward]).evaluate(rows("a"))
    assert "\n" not in str(info.value)


def test_a_reward_that_does_not_load_in_the_worker_says_so():
    with (
        RewardRunner([zoo.BreaksOnLoad(timeout=20)], max_workers=1) as runner,
        pytest.raises(
            UserError, match=r"cannot be loaded in a worker process.*no module named codex"
        ),
    ):
        runner.evaluate(rows("a"))


def test_a_column_that_cannot_reach_a_worker_names_its_row():
    with (
        RewardRunner([zoo.Picky(timeout=20)], max_workers=1) as runner,
        pytest.raises(UserError, match=r"'picky' failed on row 1: .*<lambda>"),
    ):
        runner.evaluate([sample(0), sample(1, columns={"check": lambda: 0})])


def test_order_is_kept_whatever_finishes_first():
    with RewardRunner([zoo.Sleeper(timeout=20)], max_workers=2) as runner:
        values = runner.evaluate(rows("0.4", "0", "0.1", "0"))
    assert values == [[0.0], [1.0], [2.0], [3.0]]


def test_workers_are_kept_between_iterations_and_closed():
    with RewardRunner([FunctionReward(pid, timeout=20)], max_workers=1) as runner:
        (first,), (second,) = runner.evaluate(rows("a"))[0], runner.evaluate(rows("a"))[0]
        assert first == second != os.getpid()
        os.kill(int(first), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)


def pid(completion):
    return os.getpid()


def test_no_timeout_runs_here():
    assert RewardRunner([FunctionReward(pid)]).evaluate(rows("a")) == [[float(os.getpid())]]


def test_interpreter_exits_with_the_pool_open_and_a_row_hanging(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import threading, time\n"
        "from rlzoo.rewards import RewardRunner\n"
        "import reward_samples as zoo\n"
        "if __name__ == '__main__':\n"
        "    runner = RewardRunner([zoo.Sleeper(timeout=60)], max_workers=1)\n"
        "    print(runner.evaluate([zoo.sample(3, '0')]))\n"
        "    hang = lambda: runner.evaluate([zoo.sample(4, '60')])\n"
        "    threading.Thread(target=hang, daemon=True).start()\n"
        "    time.sleep(0.5)\n"
    )
    run = partial(subprocess.run, capture_output=True, text=True, timeout=20, check=True)
    done = run([sys.executable, str(script)], env=ENV)
    assert done.stdout == "[[3.0]]\n"


def run_script(folder, text):
    script = folder / "main.py"
    script.write_text("print('main runs')\nfrom rlzoo.rewards import *\n" + text)
    return subprocess.run(
        [sys.executable, str(script)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_workers_do_not_run_the_training_script_again(tmp_path):
    """It imports torch and Lightning; and without a main guard it would start workers itself."""
    done = run_script(
        tmp_path,
        "from reward_samples import *\n"
        "print(RewardRunner([Picky(timeout=20)], max_workers=2).evaluate([sample(3)]))\n",
    )
    assert done.stdout.splitlines() == ["main runs", "[[1.0]]"]


OWN = "class Own(Reward):\n    def reward(self, sample): return 2.0\n"
SCORE = (
    "print(RewardRunner([Own(timeout=20)], max_workers=1).evaluate([Sample(0, *'abc', True, 1)]))\n"
)


def test_a_reward_of_the_training_script_works_with_a_main_guard(tmp_path):
    done = run_script(tmp_path, f"{OWN}if __name__ == '__main__':\n    {SCORE}")
    assert sorted(done.stdout.splitlines()) == ["[[2.0]]", "main runs", "main runs"]


def test_a_reward_of_the_training_script_without_main_guard_is_told(tmp_path):
    done = run_script(tmp_path, OWN + SCORE)
    assert done.returncode == 1
    assert "define it in a module of its own, or guard" in done.stderr.splitlines()[-1]


def test_other_spawned_processes_keep_their_main():
    from multiprocessing import spawn

    from rlzoo.rewards.spawn import spawn_context

    before = spawn.get_preparation_data
    process = spawn_context(b"").Process(target=os.getpid)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert spawn.get_preparation_data is before
