"""Post-training of decision models: data, augmentation, objectives, loop, adapters, export.

Nothing is imported here, so that `import dicast.training` costs nothing; the modules that need torch say so themselves.
"""
