"""Modules that the agent's zip has in place of those of `api` that need the whole package; this is `api` itself.

Where the whole package is installed on a host, its own modules come first, see `child.Installed`.
"""

import os

import kinetic_orchestration
from kinetic_orchestration.program.client_only import can_submit

can_submit()  # completes the path of the package
__path__ = [*(os.path.join(path, "api") for path in kinetic_orchestration.__path__[1:]), *__path__]
