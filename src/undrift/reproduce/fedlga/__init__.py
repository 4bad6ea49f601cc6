"""The figures and tables of Li et al., FedLGA (2021)."""
