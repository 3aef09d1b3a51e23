"""Modules that the agent's zip has in place of those of `api` that need the whole package; this is `api` itself.

Where the whole package is installed on a host, its own modules come first, see `child`.
"""

import os

import kinetic_orchestration

__path__ = [*(os.path.join(path, "api") for path in kinetic_orchestration.__path__[1:]), *__path__]
