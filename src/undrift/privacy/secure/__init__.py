"""Secure aggregation: the server learns weighted sums of uploads, and nothing else about one.

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning, CCS 2017, for a server that may be dishonest. One execution is an `Attempt`. `SecureSite`
and `SecureServer` take its five stages: advertise, share, mask, agree, unmask. Neither knows how
messages travel: `undrift.deploy.secure` carries them.
"""
