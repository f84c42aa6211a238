"""What is known of each array library."""
