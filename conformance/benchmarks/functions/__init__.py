"""The accuracy of library functions."""
