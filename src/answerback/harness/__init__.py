"""A local server of the Agents API wire contract, for development and tests.

It shares nothing with the runtime but the wire: it imports neither actors nor handlers nor store, and only tests,
the testing module and the command line import it. What it answers, in which order and with which status follows the
observed behaviour of the hosted service; where that is uncertain, a knob chooses (`knobs`).
"""
