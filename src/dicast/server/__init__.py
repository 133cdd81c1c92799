"""The HTTP server: an ASGI application around engines, and the process that runs it.

`http` is the small request/response layer, `bodies` reads request bodies within limits, `keys` and `limits` decide who
may ask how often, `models` keeps models loaded, `deciding` turns a record into a decision, `systemone`, `decisions` and
`batch` are the three API routes, `pages` everything else, `app` puts them together and `process` runs it. The wire
contracts themselves are :mod:`dicast.wire`'s.
"""
