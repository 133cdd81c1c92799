"""Measuring decision models: metrics, tasks, robustness, calibration, abstention, reports.

Nothing is imported here, so that `import dicast.evaluation` costs nothing. None of the modules needs torch; those that
talk to a server need httpx and say so.
"""
