"""An exported model in plain PyTorch: `rayfed-kd export` writes a state_dict that needs no rayfed-kd.

The class below is LeNet-5 written out by hand for 1x8x8 digits, with the module names of the exported file.
Only the last part uses rayfed-kd: it trains and exports a model, and gives the images to try it on.
"""

import torch
from safetensors.torch import load_file
from torch import nn


class LeNet5(nn.Module):
    """Takes [batch, 1, 8, 8] normalised images; gives [batch, 10] logits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        )
        self.head = nn.Linear(84, 10)

    def forward(self, images):
        return self.head(self.body(images))


if __name__ == "__main__":
    import rayfed_kd

    result = rayfed_kd.run("quickstart", ["rounds=5", "method={name: fedavg}"], local=True)
    rayfed_kd.export(result.folder, "global", "exported")  # exported.safetensors, exported.yaml

    model = LeNet5()
    model.load_state_dict(load_file("exported.safetensors"))
    model.eval()

    digits = rayfed_kd.prepare(result.folder / "config.yaml").setting.dataset
    pixels = torch.tensor(digits.train.images) / 255
    images = (pixels - torch.tensor(digits.mean)) / torch.tensor(digits.std)  # one channel
    with torch.no_grad():
        predicted = model(images).argmax(dim=1)
    correct = (predicted == torch.tensor(digits.train.labels)).float().mean()
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"accuracy on all {len(images)} digits: {correct:.3f}; {weights} weights")
