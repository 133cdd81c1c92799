"""`python -m docs.results`: measure again what this folder says (see `dicast.evaluation.results`)."""

from dicast.evaluation.results import main

main()
