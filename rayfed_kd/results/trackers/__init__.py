"""Who is told of a run as it goes: TensorBoard, MLflow, Weights & Biases, a user's own."""
