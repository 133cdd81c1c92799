"""The public conformance suite `jevcompat` against the embedded model: every MUST, in the default mode."""

import pytest
from tests.server.serving import Running

runner = pytest.importorskip("jevcompat.runner", reason="the jevcompat package is not installed")

HOSTED_STATUS = "errors.validation-shape"
"""The suite wants 422 where the hosted API, and so ours, answers 400: too many options or levels, no option at all."""


def test_every_requirement(embedded: Running) -> None:
    report = runner.run(embedded.url, timeout=60)
    failed = {result.id for result in report.results if result.status == "fail"}
    assert report.verdict == "conformant", report.summary()
    assert report.untested_musts == []
    assert failed == {HOSTED_STATUS}
