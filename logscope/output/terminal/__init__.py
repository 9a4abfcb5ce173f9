"""What is printed for people."""
