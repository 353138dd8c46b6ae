"""Two traces side by side: what differs, and where the difference begins."""
