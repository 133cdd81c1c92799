"""Builds the training mixture of the embedded model: public train parts in several forms, and generated records."""
