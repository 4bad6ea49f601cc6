"""Methods in which every client also trains a model of its own, for its own data."""
