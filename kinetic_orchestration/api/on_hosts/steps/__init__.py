"""The steps around a training, where they cannot be used; where the whole package is installed, those of it."""

import os

import kinetic_orchestration
from kinetic_orchestration.program.client_only import can_submit

can_submit()  # completes the path of the package
__path__ = [*(os.path.join(path, "api", "steps") for path in kinetic_orchestration.__path__[1:]), *__path__]
