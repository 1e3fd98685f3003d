"""A sum learned by an RNN, two loader processes, time totalled over epochs, the whole model saved, as a SimpleRNN's train.py."""

import time

import numpy as np
import torch
import torch.nn as nn
import torch.utils.data as Data

import elasticd as elastic


class SimpleRNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size, device):
        super().__init__()
        self.hidden_size, self.device = hidden_size, device
        self.rnn = nn.RNN(input_size, hidden_size, batch_first=True)
        self.fc = nn.Linear(hidden_size, output_size)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), self.hidden_size).to(self.device)
        out, _ = self.rnn(x, h0)
        return self.fc(out[:, -1, :])


def generate_data(sample_num, seq_length):
    inputs = np.random.rand(sample_num, seq_length, 1)
    lables = np.sum(inputs, axis=1)
    return inputs, lables


if __name__ == "__main__":
    run = elastic.join()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SimpleRNN(1, 12, 1, device)
    model = model.to(device)
    inputs, lables = generate_data(128, 2)
    inputs = torch.tensor(inputs, dtype=torch.float32).to(device)
    lables = torch.tensor(lables, dtype=torch.float32).to(device)
    dataset = Data.TensorDataset(inputs, lables)
    dataloader = Data.DataLoader(dataset=dataset, batch_size=4, shuffle=True, num_workers=2)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    epoch_num = 4
    time_total = 0
    model.train()
    model, optimizer, dataloader = run.prepare(model, optimizer, dataloader)
    for epoch in run.epochs(epoch_num):
        loss_total = 0
        begin = time.time()
        for i, (inputs, lables) in enumerate(dataloader):
            inputs = inputs.to(device)
            lables = lables.to(device)
            outputs = model(inputs)
            loss = criterion(outputs, lables)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_total += loss.item() / inputs.size(0)
        end = time.time()
        time_total += (int)(end - begin)
        print(f"Epoch [{epoch + 1}/{epoch_num}], Loss: {loss_total:.4f}")
        print(f"Cost Time: {time_total // 60}m{time_total % 60}s")
    run.save(model, "best.pt")
