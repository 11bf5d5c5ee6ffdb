"""The wire of the Agents API as this project reads and writes it: structs, the SSE reader, the bytes of an input."""
