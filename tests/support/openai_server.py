"""An OpenAI-compatible server of the tests, started as an engine's is: `python openai_server.py --model M --port P`.

It answers a prompt with its words backwards. Its folder (`--state`) has what it was asked, one line for each request,
and what goes wrong: `faults.json` maps a part of a prompt to what happens to requests that have it, `times` in all its
lives: {"status": 503, "retry_after": 0.1}, {"hang": 5}, {"deaf": 9}, {"die": 1}, {"die_answering": 1}, {"die_within": 1}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LIMIT = 1000  # characters of a prompt


def text_of(given: dict[str, Any]) -> str:
    if "messages" in given:
        return " ".join(str(message["content"]) for message in given["messages"])
    return str(given["prompt"])


def answer_to(prompt: str) -> str:
    return " ".join(reversed(prompt.split()))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or an answer's body waits for the acknowledgement of its head, some 40 ms
    options: Any
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.send(200, {"data": [{"id": self.options.model}]})
        elif self.path == "/health":
            self.send(200 if time.monotonic() > BEGUN + self.options.start_delay else 503, {})
        else:
            self.send(404, {})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, state = text_of(given), Path(self.options.state)
        with self.lock, (state / "asked").open("a") as file:
            told = {"prompt": prompt, "path": self.path, "server": LIFE, "body": given}
            file.write(json.dumps({**told, "connection": self.client_address[1]}) + "\n")
        fault = self.fault_of(prompt, state)
        time.sleep(self.options.delay)
        if "deaf" in fault:  # as vLLM does that was asked to end with answers in flight
            self.server.socket.close()
            time.sleep(fault["deaf"])
        if "hang" in fault:
            time.sleep(fault["hang"])
        if "die" in fault:
            os._exit(3)
        if "die_within" in fault:  # with the head of an answer sent, and none of its body
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            os._exit(5)
        if "die_answering" in fault:  # as vLLM does
            self.send(500, {"error": {"message": "EngineCore encountered an issue"}})
            time.sleep(fault["die_answering"])
            os._exit(4)
        if "status" in fault:
            more = {"Retry-After": str(fault["retry_after"])} if "retry_after" in fault else {}
            self.send(fault["status"], {"error": {"message": fault.get("message", "as the test wants")}}, more)
        elif len(prompt) > LIMIT:
            told = f"This model's maximum context length is {LIMIT} characters, and the prompt has {len(prompt)}"
            self.send(400, {"error": {"message": told}})
        else:
            self.answer(prompt)

    def answer(self, prompt: str) -> None:
        text, count = answer_to(prompt), len(prompt.split())
        choice = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if "chat" in self.path else {"text": text}
        self.send(200, {"choices": [choice], "usage": {"prompt_tokens": count, "completion_tokens": count}})

    def fault_of(self, prompt: str, state: Path) -> dict[str, Any]:
        try:
            faults = json.loads((state / "faults.json").read_text())
        except FileNotFoundError:
            return {}
        for number, (part, fault) in enumerate(faults.items()):
            if part in prompt:
                for time_ in range(fault.get("times", 1)):
                    try:
                        (state / f"fault-{number}-{time_}").touch(exist_ok=False)
                        return dict(fault)
                    except FileExistsError:
                        pass
        return {}

    def send(self, status: int, told: dict[str, Any], more: dict[str, str] | None = None) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(more or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


BEGUN = time.monotonic()
LIFE = os.urandom(6).hex()  # of each process its own, also where several machines count processes from 1

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--state", "--host"):
        parser.add_argument(name, default="")
    parser.add_argument("--port", type=int)
    for name in ("--delay", "--start-delay"):
        parser.add_argument(name, type=float, default=0.0)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--cache", help="variable that names the folder of what is compiled")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--lora-modules", nargs="*", default=[])
    Handler.options = parser.parse_args()
    print("loading the model", flush=True)
    for adapter in Handler.options.lora_modules:  # by vLLM's two forms
        folder = json.loads(adapter)["path"] if adapter.startswith("{") else adapter.partition("=")[2]
        with Path(Handler.options.state, "adapters").open("a") as file:
            file.write(Path(folder, "adapter.bin").read_text() + "\n")
    if Handler.options.child:  # as engines have workers
        import subprocess

        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(Handler.options.state, "worker").write_text(str(worker.pid))
    if Handler.options.cache:
        program = Path(os.environ[Handler.options.cache], "programs", "program")
        with Path(Handler.options.state, "compiled").open("a") as file:
            file.write(f"{program.exists()}\n")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("compiled")
    if Handler.options.exit is not None:
        sys.exit(f"no room on the device, ends with {Handler.options.exit}")
    Path(Handler.options.state, "server").write_text(str(os.getpid()))
    Server(("127.0.0.1", Handler.options.port), Handler).serve_forever()
