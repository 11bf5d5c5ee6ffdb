"""The steps from an empty file to the newest schema, one SQL file a step, and the ladder that climbs them."""
