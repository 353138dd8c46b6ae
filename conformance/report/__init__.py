"""How a result is told: records for the file, text for the terminal."""
