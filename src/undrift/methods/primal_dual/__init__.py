"""Methods with a multiplier or a splitting: a client solves a problem with a pull to a centre."""
