"""A server process with a model of plain arithmetic, for tests of signals: PORT [KEYS_FILE]."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[2])]

from tests.server.serving import Arithmetic  # noqa: E402

from dicast.engine import Engine  # noqa: E402
from dicast.errors import CheckpointError, DicastError  # noqa: E402
from dicast.server.process import serve  # noqa: E402
from dicast.server.settings import ModelSpec, Settings  # noqa: E402


class Slow(Arithmetic):
    """Takes half a second for a state that says slow."""

    def score(self, encodings):  # type: ignore[no-untyped-def]
        if any("slow" in text for encoding in encodings for text in encoding.texts):
            self.gate.clear()
            self.gate.wait(0.5)
            self.gate.set()
        return super().score(encodings)


def load(spec: ModelSpec) -> Engine:
    if spec.name == "broken":
        raise CheckpointError("config.json is missing")
    return Engine(Slow())


if __name__ == "__main__":
    name, *keys = sys.argv[1:]
    settings = Settings(
        port=0,
        models=(ModelSpec(name, name),),
        api_keys_file=Path(keys[0]) if keys else None,
        grace_seconds=10,
        log_format="json",
    )
    try:
        sys.exit(serve(settings, load=load))
    except DicastError as error:
        print(f"dicast: error: {error}", file=sys.stderr)
        sys.exit(1)
