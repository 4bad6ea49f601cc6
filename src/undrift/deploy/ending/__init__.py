"""Ends a site within five seconds of a signal: `stopping` from inside, `watchdog` from outside."""
