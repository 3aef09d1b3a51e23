"""A batch in a process of its own, which a test kills."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kinetic_orchestration as kinetic
from kinetic_orchestration.program.inference import step
from tests.support import openai_server

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    lab = Path(told["lab"])
    argv = ["{python}", openai_server.__file__, "--port", "{port}", "--state", str(lab / "state"), "--model", "{model}"]
    engine = kinetic.Server(argv=[*argv, *told["more"]])
    settings = step.Settings(engine=engine, output=str(lab / "output"), concurrency=told.get("concurrency", 4))
    print(json.dumps(step.answer_all(str(lab / "model"), told["prompts"], settings)))
