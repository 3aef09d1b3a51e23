"""A server of a promoted model, by transformers, as the container of a pod: `python version_server.py --root FOLDER MODEL …`.

It takes the words that `vllm serve` takes. A pod of the tests is a process of this machine and mounts nothing: the folder
of the version is below FOLDER, by the last part of MODEL. It runs in an environment that has torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from model_server import _Handler  # type: ignore[import-not-found]  # beside this file


class _Served(_Handler):  # type: ignore[misc]
    model: Any
    tokenizer: Any
    one = threading.Lock()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != self.given.served_model_name:
            self._answer(404, {"error": {"message": f"The model `{asked['model']}` does not exist."}})
            return
        given = self.tokenizer(asked["prompt"], return_tensors="pt")
        with self.one:
            made = self.model.generate(**given, max_new_tokens=asked["max_tokens"], do_sample=False)
        text = self.tokenizer.decode(made[0][given["input_ids"].shape[1] :], skip_special_tokens=True)
        self._answer(200, {"object": "text_completion", "choices": [{"index": 0, "text": text}]})


def main() -> None:
    reads = argparse.ArgumentParser()
    reads.add_argument("model")
    reads.add_argument("--root", required=True)
    reads.add_argument("--served-model-name", required=True)
    reads.add_argument("--port", type=int, required=True)
    _Served.given, _ = reads.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which a first process would ignore
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

    version = Path(_Served.given.root, _Served.given.model.rstrip("/").rpartition("/")[2])
    _Served.tokenizer = AutoTokenizer.from_pretrained(version)
    _Served.model = AutoModelForCausalLM.from_pretrained(version)
    pod = os.environ["VLLM_HOST_IP"]
    ThreadingHTTPServer((f"127.{pod.partition('.')[2]}", _Served.given.port), _Served).serve_forever()


if __name__ == "__main__":
    main()
