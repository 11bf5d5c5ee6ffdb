"""answerback: the durable runtime that answers an agent's function calls, each one once."""
