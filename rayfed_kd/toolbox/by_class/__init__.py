"""What is known class by class: label counts, means of features or outputs, prototypes."""
