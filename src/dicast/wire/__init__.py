"""JSON bodies to records and decisions to JSON bodies, for both wire contracts. No HTTP framework, no model, no torch.

`systemone` and `decisions` hold the two contracts; `jsontext` reads JSON strictly, `assets` puts media where
placeholders were, `extensions` reads the one extra key ``x_dicast``, `errors` makes the error body that both SDK
families understand.
"""
