"""Who is told of a run as it goes: TensorBoard, Weights & Biases, a user's own."""
