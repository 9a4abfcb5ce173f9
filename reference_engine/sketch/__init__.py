"""The approximate engine of the inference: the decisions of the exact ones, many steps in one stride."""
