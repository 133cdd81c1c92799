"""Other people's names for what Dicast does, so that existing code runs with one changed import."""
