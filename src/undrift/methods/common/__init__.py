"""What several methods share: averaging, its schemes, server optimizers, staleness weights."""
