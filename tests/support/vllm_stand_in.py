"""What vLLM does with a model, without vLLM: over HTTP, or as a module to import."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace

import torch
from transformers import AutoModelForCausalLM


class Brain:
    """Draws token by token from the folder of weights that it read last.

    Its settings are what tests break: what it reports of itself, and `damage`, which changes
    answers.
    """

    def __init__(self):
        self.version, self.mode, self.device = "0.32.0", "processed_logprobs", "cuda"
        self.dev, self.reads, self.success = True, True, True
        self.damage = lambda found: found
        self.model, self.orders, self.reloads, self.resets = None, [], 0, 0

    def reload(self, folder):
        self.reloads += 1
        if self.reads or self.model is None:
            self.model = AutoModelForCausalLM.from_pretrained(folder)

    def answer(self, prompt, order):
        self.orders.append(order)
        known = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        for name, value in {**known, "min_p": 0.0, "ignore_eos": True, "logprobs": 0}.items():
            assert order[name] == value
        assert order["temperature"] > 0 or order["n"] == 1  # vLLM refuses more
        return self.damage([self._draw(prompt, order, i) for i in range(order["n"])])

    @torch.no_grad()
    def _draw(self, prompt, order, i):
        random = torch.Generator().manual_seed(order["seed"] + i)
        ids, log_probs = [], []
        while len(ids) < order["max_tokens"] and not set(ids) & set(order["stop_token_ids"]):
            logits = self.model(torch.tensor([[*prompt, *ids]])).logits[0, -1].float()
            scores = (logits / (order["temperature"] or 1.0)).log_softmax(-1)
            if order["temperature"]:
                ids.append(int(torch.multinomial(scores.exp(), 1, generator=random)))
            else:
                ids.append(int(scores.argmax()))
            log_probs.append(float(scores[ids[-1]]))
        return ids, log_probs

    def respond(self, path, body):
        """Return the JSON of an endpoint, or None where there is no such one."""
        config = {"model_config": {"logprobs_mode": self.mode}}
        config["device_config"] = {"device": self.device}
        if path == "/version":
            return {"version": self.version}
        if path == "/v1/models":
            return {"data": [{"id": "served", "max_model_len": 64}]}
        if path == "/v1/completions":
            assert body["model"] == "served"
            assert body["return_token_ids"]
            choices = [
                {"index": i, "token_ids": ids, "logprobs": {"token_logprobs": log_probs}}
                for i, (ids, log_probs) in enumerate(self.answer(body["prompt"], body))
            ]
            return {"choices": choices[::-1]}  # in any order
        if not self.dev:
            return None
        if path == "/server_info":
            return {"vllm_config": config}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.reload(body["kwargs"]["weights_path"])
            return {"results": [None]}
        if path == "/reset_prefix_cache":
            self.resets += 1
            return {"success": self.success}
        return None


@contextmanager
def serving(brain):
    """Serve a brain at the address that is yielded; one request at a time reaches it."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._respond(None)

        def do_POST(self):
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, body):
            try:
                with lock:
                    found = brain.respond(self.path.partition("?")[0], body)
                code = 404 if found is None else 200
            except Exception as error:
                code, found = 500, {"error": {"message": f"{error}\nand a trace"}}
            text = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def modules(brain):
    """Return what is to be put into sys.modules for ``import vllm`` to find a brain."""
    vllm, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")

    class LLM:
        def __init__(self, **settings):
            brain.settings = settings
            brain.reload(settings["model"])

        def collective_rpc(self, method, kwargs):
            assert method == "reload_weights"
            brain.reload(kwargs["weights_path"])

        def reset_prefix_cache(self):
            brain.resets += 1
            return brain.success

        def generate(self, prompts, params, use_tqdm):
            return [
                SimpleNamespace(outputs=[_output(i, *one) for i, one in enumerate(answers)][::-1])
                for answers in (
                    brain.answer(prompt["prompt_token_ids"], order)
                    for prompt, order in zip(prompts, params, strict=True)
                )
            ]

    vllm.__version__, vllm.LLM, vllm.SamplingParams = brain.version, LLM, dict
    platforms.current_platform = SimpleNamespace(device_type=brain.device)
    vllm.platforms = platforms
    return {"vllm": vllm, "vllm.platforms": platforms}


def _output(index, ids, log_probs):
    steps = [{token: SimpleNamespace(logprob=x)} for token, x in zip(ids, log_probs, strict=True)]
    return SimpleNamespace(index=index, token_ids=ids, logprobs=steps)
