"""Many replicas online: the application of `dicast serve` as a Ray Serve application.

    settings = Settings(models=(ModelSpec("mine", "/models/mine"),), api_keys_file=Path("/etc/dicast/keys.toml"))
    ray.serve.run(build_app(settings, replicas=8, num_gpus=1))

Each replica is a whole server of its own: it loads the models, checks keys, counts rates and holds metrics by itself.
Ray Serve listens, spreads requests and restarts what fails. Knows nothing of routes or bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dicast.scale import import_ray
from dicast.server.settings import Settings

if TYPE_CHECKING:
    import ray.serve

    from dicast.server.app import App

NAME = "dicast"
"""Name of the deployment."""


def build_app(
    settings: Settings,
    *,
    replicas: int | Literal["auto"] = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    **deployment_options: Any,
) -> ray.serve.Application:
    """An application for `ray.serve.run`.

    Ray Serve does the listening, so of the settings `host`, `port` and `keep_alive_seconds` are not used, except that a
    public `host` without keys is refused as ever: give the address on which Ray Serve listens.

    Args:
        settings: how every replica behaves; paths in it are absolute and exist on every node. Rates and bounds hold per
            replica.
        replicas: how many; ``"auto"`` lets Ray Serve choose by load.
        num_cpus: CPUs reserved for each replica.
        num_gpus: GPUs reserved for each replica; may be a fraction.
        **deployment_options: other options of `ray.serve.deployment`, such as ``autoscaling_config``.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
        ConfigError: a setting is wrong.
    """
    serve = import_ray("ray.serve")
    settings.check()
    options = {
        "name": NAME,
        "num_replicas": replicas,
        "ray_actor_options": {"num_cpus": num_cpus, "num_gpus": num_gpus},
        # Ray Serve's own bound is 5: too few for an engine that batches the requests of a moment.
        "max_ongoing_requests": settings.max_in_flight,
        "graceful_shutdown_timeout_s": settings.grace_seconds,
    }

    def build() -> App:
        return replica_app(settings)

    application: ray.serve.Application = serve.deployment(**(options | deployment_options))(
        serve.ingress(build)()
    ).bind()
    return application


def replica_app(settings: Settings) -> App:
    """The application of one replica, with the default model loaded: Ray Serve sends requests once it is there.

    Raises:
        DicastError: the default model cannot be loaded, or the keys cannot be read.
    """
    from dicast.server.logs import configure
    from dicast.server.process import build_app as build_server
    from dicast.server.process import load_engine

    configure(settings.log_level, settings.log_format)
    default = settings.models[0]
    ready = {default: load_engine(default, settings)}
    return build_server(settings, load=lambda spec: ready.pop(spec, None) or load_engine(spec, settings))
