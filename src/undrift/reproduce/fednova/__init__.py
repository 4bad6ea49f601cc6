"""The figures and tables of Wang et al., FedNova (NeurIPS 2020)."""
