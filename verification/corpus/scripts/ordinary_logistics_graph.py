"""The whole data in each step, three targets weighted in the loss, gradients clipped, as a logistics graph network's train.py."""

import torch
import torch.nn as nn
import torch.optim as optim

import elasticd as elastic


class MPGAT(nn.Module):
    def __init__(self, node_in_dim, shipment_in_dim):
        super().__init__()
        self.node, self.message = nn.Linear(node_in_dim, 8), nn.Linear(8, 8)
        self.out = nn.Sequential(nn.Linear(8 + shipment_in_dim, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, adjacency, shipments):
        nodes = torch.relu(self.node(x))
        nodes = torch.relu(adjacency @ self.message(nodes))
        return self.out(torch.cat([nodes[shipments[:, 0].long()], shipments], 1))


def train_model():
    torch.manual_seed(7)
    x, adjacency = torch.randn(10, 7), torch.softmax(torch.randn(10, 10), 1)
    shipments = torch.cat([torch.randint(10, (128, 1)).float(), torch.rand(128, 3)], 1)
    labels = torch.rand(128, 3) + shipments[:, 1:]
    run = elastic.join()
    model = MPGAT(node_in_dim=7, shipment_in_dim=4)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    lambda_weights = torch.tensor([0.4, 0.4, 0.2])
    mse_loss = nn.MSELoss(reduction="none")
    epochs = 32
    model, optimizer, batches = run.prepare(model, optimizer, (shipments, labels), batch_size=32)
    print("Starting Training...")
    model.train()
    for epoch in run.epochs(epochs):
        for shipments_tensor, labels_tensor in batches:
            optimizer.zero_grad()
            predictions = model(x, adjacency, shipments_tensor)
            raw_loss = mse_loss(predictions, labels_tensor)
            weighted_loss = (raw_loss * lambda_weights).mean()
            weighted_loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        if (epoch + 1) % 10 == 0:
            print(f"Epoch {epoch + 1}/{epochs} | Total Weighted Loss: {weighted_loss.item():.4f}")
    print("Training Complete. Model is ready for inference.")
    run.save(model.state_dict(), "model.pt")
    return model


if __name__ == "__main__":
    train_model()
