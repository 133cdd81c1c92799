"""The `dicast` command: one small file per command, imported only when it runs (see `dicast.cli.app`)."""
