"""The public conformance suite `jevcompat`: every MUST with the embedded model in the default mode; keys."""

from pathlib import Path

import pytest
from tests.server.serving import Running, running
from tests.server.test_keys import keys_file

from dicast.server.settings import Settings

runner = pytest.importorskip("jevcompat.runner", reason="the jevcompat package is not installed")

HOSTED_STATUS = "errors.validation-shape"
"""The suite wants 422 where the hosted API, and so ours, answers 400: too many options or levels, no option at all."""


def test_every_requirement(embedded: Running) -> None:
    report = runner.run(embedded.url, timeout=60)
    failed = {result.id for result in report.results if result.status == "fail"}
    assert report.verdict == "conformant", report.summary()
    assert report.untested_musts == []
    assert failed == {HOSTED_STATUS}


@pytest.mark.parametrize("missing_key_status", [401, 403])
def test_keys(tmp_path: Path, missing_key_status: int) -> None:
    path, keys = keys_file(tmp_path, "alice")
    with running(Settings(api_keys_file=path, missing_key_status=missing_key_status)) as server:
        report = runner.run(server.url, key=keys["alice"], only={"auth"})
    passed = {result.id for result in report.results if result.status == "pass"}
    assert {"auth.bearer", "auth.missing", "auth.invalid"} <= passed
    assert not [result.id for result in report.results if result.status == "fail"]
