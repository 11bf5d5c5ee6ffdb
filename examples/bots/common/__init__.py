"""What the bots of this folder share. Copy what you need: it is an example, not a framework."""
