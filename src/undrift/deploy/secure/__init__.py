"""Secure aggregation between the server and the sites of a deployment.

`undrift.privacy.secure` is the protocol; here are its messages, and what server and sites do in a
round. Masked uploads are the answers to work orders; the other stages are requests of their own.
"""
