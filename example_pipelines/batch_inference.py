"""Shows batch inference: a model answers many prompts on the hosts of a slice, and a second run asks nothing again.

    python example_pipelines/batch_inference.py                 vLLM's build for CPUs, on this machine
    python example_pipelines/batch_inference.py transformers    transformers serve in its place

The model is a tiny one with random weights, which `tiny_model.py` makes in the environment of
vllm_on_cpu/pyproject.toml (6 GB, installed once). For a real slice: give a project and a bucket (KINETIC_PROJECT,
KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), the address of your model (a folder in the bucket, or hf://owner/name),
`accelerator="v6e-4"` with `requirements=["vllm-tpu==0.32.0"]`, from Python 3.12, or `"l4"` with `["vllm"]`, and leave
out ENGINE_OPTIONS and ENVIRONMENT, which are of a CPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tiny_model

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).parent / "vllm_on_cpu" / "pyproject.toml"
ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"dtype": "float32", "max_model_len": tiny_model.LENGTH, "enforce_eager": True},
    "transformers": {},
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
PROMPTS = [f"two and {number} are" for number in range(40)]
PARAMETERS = {"max_tokens": 8, "temperature": 0}


@kinetic.run(accelerator="cpu", requirements=REQUIREMENTS)
def make_model() -> str:
    return tiny_model.make(kinetic.current().output_dir + "/model")


def answer(model: str, engine: str, output: str) -> dict[str, Any]:
    """One job: a server on each of its hosts, and the prompts that have no answer in `output` yet."""
    os.environ.update(ENVIRONMENT)
    job = kinetic.serve_batch(
        model, PROMPTS, engine=engine, engine_options=ENGINE_OPTIONS[engine], parameters=PARAMETERS, concurrency=16,
        output=output, accelerator="cpu", requirements=REQUIREMENTS, capture_env_vars=[*ENVIRONMENT],
    )  # fmt: skip
    return dict(job.result())


def main() -> None:
    engine = sys.argv[1] if len(sys.argv) > 1 else "vllm"
    model = make_model()
    output = str(Path(model).parent / f"answers of {engine}")
    first, second = answer(model, engine, output), answer(model, engine, output)
    lines = [json.loads(line) for part in sorted(Path(first["parts"]).iterdir()) for line in part.open()]
    print(
        f"\nresult   {first['answered']} of {first['rows']} answered by {first['engine']}, then {second['reused']} of "
        f"{second['rows']} were there already\nspeed    {first['tokens_in_per_second']:.0f} tokens a second in, "
        f"{first['tokens_out_per_second']:.0f} out, {first['start_seconds']:.0f} s to start\n"
        f"first    {lines[0]['prompt']!r} → {lines[0]['text']!r}\nanswers  {first['parts']}"
    )


if __name__ == "__main__":
    main()
