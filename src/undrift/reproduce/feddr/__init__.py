"""The figures and tables of Tran-Dinh et al., FedDR (NeurIPS 2021)."""
