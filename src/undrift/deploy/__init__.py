"""The same methods across sites, on Flower."""
