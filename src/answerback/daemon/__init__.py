"""The program `answerback`: its commands, and what they share."""
