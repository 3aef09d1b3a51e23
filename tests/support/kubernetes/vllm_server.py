"""vLLM itself as the container of a pod that is a process here: `python … MODEL --served-model-name NAME …`, with the
words of `vllm serve`.

It listens on the loopback address of its pod. A model in a volume (`/model/…`) is in the folder of this machine that
MODELS names; VLLM_PYTHON is the interpreter of an environment that has vLLM's build for CPUs, whose command `vllm` does
not start.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    model, *words = sys.argv[1:]
    pod = os.environ["VLLM_HOST_IP"]
    address = f"127.{pod.partition('.')[2]}"
    os.environ["VLLM_HOST_IP"] = address  # by which its own processes find each other
    words[words.index("--host") + 1] = address
    folder = os.environ["MODELS"] + model.removeprefix("/model")
    python = os.environ["VLLM_PYTHON"]
    os.execv(python, [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, *words])


if __name__ == "__main__":
    main()
