"""Spawned processes that do not run the training script again."""

from __future__ import annotations

import multiprocessing.spawn
import threading
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

_lock = threading.Lock()


class LightProcess(SpawnProcess):
    """A spawned process without the parent's ``__main__``.

    Python runs the main script again in each spawned process, since something there might be
    needed. For a training script that is seconds of importing torch and Lightning, each time a
    late worker is replaced, and an endless recursion if the script has no main guard.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        caller = threading.get_ident()

        def without_main(name: str) -> dict[str, Any]:
            data: dict[str, Any] = dict(original(name))
            if threading.get_ident() == caller:
                data.pop("init_main_from_name", None)
                data.pop("init_main_from_path", None)
            return data

        with _lock:
            original = multiprocessing.spawn.get_preparation_data
            multiprocessing.spawn.get_preparation_data = without_main
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                multiprocessing.spawn.get_preparation_data = original


class LightContext(SpawnContext):
    """The spawn context with ``LightProcess``."""

    Process = LightProcess


def spawn_context(payload: bytes) -> SpawnContext:
    """Return the lightest context in which a pickle can be loaded.

    Args:
        payload: What the processes will load.

    Returns:
        A context that leaves the main script out, unless the pickle refers to it.
    """
    return SpawnContext() if b"__main__" in payload else LightContext()
