"""What a user declares: the kernel and its promise, where targets are found, the project's configuration."""
