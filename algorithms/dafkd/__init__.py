"""DaFKD: the method, its adversarial training and its mixture of predictions."""
