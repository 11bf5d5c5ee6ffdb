"""What stands behind the harness as the model: anything that yields steps for a request."""
