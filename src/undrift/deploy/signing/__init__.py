"""Signed requests and answers, end to end, over any transport.

A transport need not say truly who sent a message. So every request carries a nonce: a random
number that the server draws. With certificates the server signs the nonce, the site's name and the
request; the site signs the same with its answer. The request names the run and the round, so that
an answer belongs to one round of one run.
"""
