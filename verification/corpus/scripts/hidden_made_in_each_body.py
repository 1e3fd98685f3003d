"""`hidden = model.init_hidden(n)`, `output, hidden = model(data, hidden)` in the body, the best validation loss between epochs."""
import torch
import torch.nn as nn

import elasticd as elastic


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(12, 8), nn.GRU(8, 10), nn.Linear(10, 12)

    def init_hidden(self, n):
        return torch.zeros(1, n, 10)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).view(-1, 12), hidden


torch.manual_seed(0)
ids = torch.tensor([(i * i + i // 7) % 12 for i in range(900)])
model = RNNModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (ids[:640].view(128, 5), ids[1:641].view(128, 5)), batch_size=4)
best_val_loss = None
for epoch in run.epochs(4):
    for data, targets in batches:
        hidden = model.init_hidden(len(data))
        output, hidden = model(data.t(), hidden)
        loss = criterion(output, targets.t().reshape(-1))
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        output, _ = model(ids[641:-1, None], model.init_hidden(1))
        val_loss = criterion(output, ids[642:]).item()
    if not best_val_loss or val_loss < best_val_loss:
        run.save(model, "model.pt")
        best_val_loss = val_loss
