"""The tools a runtime answers: what the model sees, the code behind it, and what comes of running it.

This room imports `model` and `errors` only. It knows no session and no store: it turns wire arguments into Python
values, runs a handler where nobody's cancellation reaches it, and turns what comes back into an `Outcome`.
"""
