"""What a method author may use: losses, optimisers, training loops, aggregation. One file a topic."""
