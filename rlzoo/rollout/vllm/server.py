"""vLLM behind its OpenAI-compatible server: token ids there and back, weights through a folder."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlzoo import distributed
from rlzoo.errors import UserError, first_line
from rlzoo.models.base import Policy
from rlzoo.rollout.vllm.engine import Answer, Engine, check_device, check_version
from rlzoo.types import Prompt

_CONCURRENT = 256  # requests under way; the server batches them
_HOW = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


class VLLMServer(Engine):
    """Servers of vLLM, one per process that trains.

    Start them as ``VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs``.
    Weights are written to a folder that the server reads, in the way of `Policy.save_pretrained`,
    so that tensor parallelism, other machines and a vllm that needs other libraries are the
    server's own matter. Source: ``/collective_rpc`` with ``reload_weights`` and
    ``/reset_prefix_cache``, which vLLM has in its development mode, and ``/v1/completions``.

    Args:
        urls: Such as ``http://localhost:8000``; the process of rank r uses ``urls[r]``.
        folder: Where weights are written; the servers have to see it under the same path. The
            machine's folder for temporary files by default.
        timeout: Longest wait for an answer of the server, in seconds.
    """

    def __init__(self, urls: list[str], folder: str | None = None, timeout: float = 1800) -> None:
        urls = [url.rstrip("/") for url in urls]
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise UserError(f"VLLMServer: url '{url}' must begin with http:// or https://")
        if len(set(urls)) < len(urls) or not urls:
            raise UserError(f"VLLMServer: urls {urls} must be different servers, at least one")
        if folder is not None and not Path(folder).is_absolute():
            raise UserError(f"VLLMServer: folder '{folder}' must be an absolute path")
        if timeout <= 0:
            raise UserError(f"VLLMServer: timeout {timeout} must be above 0 seconds")
        self.urls, self.folder, self.timeout = urls, folder, timeout
        self._model: str | None = None

    @property
    def url(self) -> str:
        """The server of this process."""
        return self.urls[distributed.rank()]

    def check(self, policy: Policy, world_size: int) -> None:
        """Refuse a wrong number of servers, a dead one, and one started in another way."""
        if len(self.urls) != world_size:
            raise UserError(
                f"VLLMServer: {len(self.urls)} urls for {world_size} processes; each process gives "
                "its weights to a server of its own"
            )
        if self.folder is not None and not Path(self.folder).is_dir():
            raise UserError(f"VLLMServer: folder '{self.folder}' does not exist; create it")
        check_version(f"VLLMServer: {self.url}", self._call("/version")["version"])
        config = self._call("/server_info?config_format=json")["vllm_config"]
        mode = config["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            raise UserError(
                f"VLLMServer: {self.url} reports {mode}, not those that tokens are drawn with; "
                f"start it as: {_HOW}"
            )
        check_device(f"VLLMServer: {self.url}", policy, str(config["device_config"]["device"]))

    def load(self, policy: Policy) -> None:
        """Write the weights and have them read; see `Engine.load`."""
        # A path of its own each time, so that nothing on the way can serve an older file.
        with tempfile.TemporaryDirectory(prefix="rlzoo-vllm-", dir=self.folder) as folder:
            Path(folder).chmod(0o755)  # the server may be another user
            policy.save_pretrained(folder)
            reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            self._call("/collective_rpc", reload)
        if not self._call("/reset_prefix_cache", {})["success"]:
            raise UserError(
                f"VLLMServer: {self.url} keeps what it computed with old weights; is somebody else "
                "using it?"
            )

    def answer(
        self, prompts: Sequence[Prompt], orders: Sequence[dict[str, Any]]
    ) -> list[list[Answer]]:
        """Draw answers, one request per prompt; see `Engine.answer`."""
        model = self._served()
        bodies = [
            {
                "model": model,
                "prompt": list(prompt.token_ids),
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                **given,
            }
            for prompt, given in zip(prompts, orders, strict=True)
        ]
        with ThreadPoolExecutor(min(_CONCURRENT, len(bodies))) as pool:
            return list(pool.map(self._complete, bodies))

    def _served(self) -> str:
        if self._model is None:
            self._model = str(self._call("/v1/models")["data"][0]["id"])
        return self._model

    def _complete(self, body: dict[str, Any]) -> list[Answer]:
        choices = self._call("/v1/completions", body)["choices"]
        try:
            return [
                Answer(choice["token_ids"], choice["logprobs"]["token_logprobs"])
                for choice in sorted(choices, key=lambda choice: choice["index"])
            ]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"VLLMServer: {self.url} answers without token ids and log-probs; is it vLLM?"
            ) from error

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request, with a body by POST, and return its JSON, None for an empty answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout) as response:
                text = response.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise UserError(self._refusal(path, error)) from error
        except (OSError, ValueError) as error:
            raise UserError(
                f"VLLMServer: {self.url} does not answer ({first_line(error)}); start it as: {_HOW}"
            ) from error

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> str:
        name = path.partition("?")[0]
        if error.code == 404 and not name.startswith("/v1"):
            return f"VLLMServer: {self.url} has no {name}; start it as: {_HOW}"
        try:
            said = first_line(ValueError(json.loads(error.read())["error"]["message"]))
        except (OSError, ValueError, KeyError, TypeError):
            said = str(error.reason)
        hint = "; it has to see the folder that weights are written to (VLLMServer.folder)"
        where = hint if name == "/collective_rpc" else ""
        return f"VLLMServer: {self.url}{name} fails ({error.code}: {said}){where}"
