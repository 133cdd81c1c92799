"""What computes: one file per backbone family and runtime. Nothing is imported here, so that torch stays optional."""
