"""A Ray of one machine for the tests that need one: no dashboard, nothing written outside a folder of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

import pytest

KEY_VARIABLE, KEY = "DICAST_TEST_RAY_KEY", "key-of-the-ray-test"
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_raylet_start_wait_time_s": "180",  # a busy machine is slow, not broken
    "CUDA_VISIBLE_DEVICES": "",
    KEY_VARIABLE: KEY,
}


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Ray with one CPU in this process's children, for the tests of one run."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dicast[ray]'")
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: sockets in it may have 107 characters at most
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        # Ray would write a token of its own to the home directory.
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 2**20,
            _temp_dir=os.path.realpath(folder),
        )
        try:
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
