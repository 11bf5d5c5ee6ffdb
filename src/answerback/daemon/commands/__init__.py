"""One module a command; each is imported when it is asked for, so that help stays fast."""
