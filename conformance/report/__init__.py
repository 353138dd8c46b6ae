"""How a result is reported: records for the file, text for the terminal."""
