"""Worker processes for rewards with a timeout; one that is late is killed."""

from __future__ import annotations

import atexit
import math
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from rlzoo.errors import UserError, one_line
from rlzoo.rewards.base import Reward, Sample
from rlzoo.rewards.contract import Failure, Outcome, attempt, portable, restored
from rlzoo.rewards.spawn import spawn_context

START_SECONDS = 30.0  # a worker imports the reward's libraries before its first row
RESTART_SECONDS = 2.0  # a killed worker is replaced, and imports them again
MAX_BREAKS = 2  # a pool that breaks more often than this does so at every start


class WorkerPool:
    """Worker processes for one reward, started when first needed and kept between iterations.

    The workers are spawned without running the training script again (unless the reward is defined
    there), hold the reward (pickled once) and read rows from a queue. A row that
    is past the reward's timeout has its worker killed; a new worker goes on with the queue.

    Args:
        reward: A reward with a timeout; must be picklable.
        max_workers: Number of processes.
        max_seconds: Longest one call may take; None allows every row its whole timeout:
            ``30 + ceil(rows / workers) * (timeout + 2)``, the 30 for starting the workers and the
            2 for replacing a killed one. Rows without a reward by then fail.

    Raises:
        UserError: If the reward cannot be pickled.
    """

    def __init__(self, reward: Reward, max_workers: int, max_seconds: float | None = None) -> None:
        self.reward = reward
        self.max_workers = 1 if reward.batched else max_workers
        self.max_seconds = max_seconds
        try:
            self._payload = pickle.dumps(reward)
        except Exception as error:
            raise UserError(
                f"reward '{reward.name}' has timeout={reward.timeout} but cannot be sent to a "
                f"worker process ({one_line(error, 200)}); move its function or class to the "
                "top level of a module, or set timeout: null"
            ) from error
        self._pool: Any = None

    def run(self, chunks: Sequence[Sequence[Sample]]) -> Generator[Outcome, None, None]:
        """Judge chunks, each under a timeout of its own.

        Args:
            chunks: What each call of the reward gets.

        Yields:
            The outcome of each chunk, in order.

        Raises:
            UserError: If a reward breaks the contract or no worker can be started.
        """
        limit = self._limit(len(chunks))
        deadline = time.monotonic() + limit
        finished = False
        try:
            futures = self._schedule(chunks)
            breaks = 0
            for i in range(len(chunks)):
                while (outcome := self._outcome(futures[i], deadline, limit)) is None:
                    breaks += 1
                    self.close()
                    if breaks > MAX_BREAKS:
                        raise UserError(
                            f"reward '{self.reward.name}': its worker processes do not start, or "
                            "die; define it in a module of its own, or guard the training script "
                            'with if __name__ == "__main__", or set timeout: null'
                        )
                    futures[i:] = self._schedule(chunks[i:])
                yield outcome
            finished = all(future.done() for future in futures)
        finally:
            # Rows that are still queued would otherwise keep the workers from the next iteration.
            if not finished:
                self.close()

    def _schedule(self, chunks: Sequence[Sequence[Sample]]) -> list[Any]:
        pool = self._started()
        timeout = self.reward.timeout
        try:
            return [pool.schedule(_reward, args=(chunk,), timeout=timeout) for chunk in chunks]
        except RuntimeError as error:  # a worker died meanwhile, and the pool takes no more rows
            broken: Future[Outcome] = Future()
            broken.set_exception(BrokenExecutor(str(error)))
            return [broken] * len(chunks)

    def _outcome(self, future: Any, deadline: float, limit: float) -> Outcome | None:
        """Wait for a row; None if the pool broke, as when a worker dies between two rows."""
        from pebble import ProcessExpired

        while not future.done():
            left = deadline - time.monotonic()
            if left <= 0:
                return Failure(f"not scored within the {limit:g} s that all rows may take")
            wait([future], timeout=min(1.0, left))
            if not future.done() and not self._pool.active:
                return None
        try:
            outcome: Outcome = future.result()
        except FutureTimeoutError:
            return Failure(f"past its timeout of {self.reward.timeout:g} s")
        except ProcessExpired as error:
            return Failure(f"its worker process died with exit code {error.exitcode}", error)
        except BrokenExecutor:
            return None
        except UserError:
            raise
        except Exception as error:
            outcome = Failure(f"{type(error).__name__}: {one_line(error, 200)}", error)
        return restored(outcome) if isinstance(outcome, Failure) else outcome

    def _limit(self, chunks: int) -> float:
        if self.max_seconds is not None:
            return self.max_seconds
        assert self.reward.timeout is not None
        rounds = math.ceil(chunks / self.max_workers)
        return START_SECONDS + rounds * (self.reward.timeout + RESTART_SECONDS)

    def _started(self) -> Any:
        from pebble import ProcessPool

        if self._pool is not None and not self._pool.active:
            self.close()
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self.max_workers,
                initializer=_start,
                initargs=(self._payload,),
                context=spawn_context(self._payload),
            )
            _open_pools.add(self)
        return self._pool

    def close(self) -> None:
        """Kill the workers; a later ``run`` starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()


def default_workers() -> int:
    """Return the number of worker processes used when none is given: the CPUs, at most 4."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, min(4, len(os.sched_getaffinity(0))))
    return max(1, min(4, os.cpu_count() or 1))


# ---- in the worker ----

_load: Callable[[], Reward] | None = None


def _start(payload: bytes) -> None:
    global _load  # noqa: PLW0603
    # Without it a worker inside a long C call is only killed after three more seconds.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        reward: Reward = pickle.loads(payload)
        reward.prepare()
    except Exception as error:
        problem = UserError(
            f"a reward cannot be loaded in a worker process ({type(error).__name__}: "
            f"{one_line(error, 200)}); move it to the top level of an importable module, "
            "or set timeout: null"
        )
        problem = error if isinstance(error, UserError) else problem

        def fail() -> Reward:
            raise problem

        _load = fail
    else:
        _load = lambda: reward  # noqa: E731


def _reward(samples: Sequence[Sample]) -> Outcome:
    assert _load is not None
    outcome = attempt(_load(), samples)
    return portable(outcome) if isinstance(outcome, Failure) else outcome
