"""Methods whose server averages the clients' moves; clients keep no state."""
